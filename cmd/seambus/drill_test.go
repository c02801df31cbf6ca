package main

import (
	"encoding/json"
	"testing"

	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
	"github.com/seambus/seambus/internal/drill"
)

func TestDrillAll(t *testing.T) {
	for name, database := range map[string]func(testing.TB) dialecttest.Database{
		"sqlite": dialecttest.SQLite, "postgres": dialecttest.Postgres, "mysql": dialecttest.MySQL,
	} {
		t.Run(name, func(t *testing.T) {
			d := database(t)
			t.Setenv(variable, d.DSN)
			db := d.Open(t)
			code, out, errOut := call(t, "drill", "all", "--for", "120s", "--scale", "100", "--orders", "300", "--json",
				"--dialect", name, "--dsn-env", variable)
			t.Log(out, errOut)
			var results []drill.Result
			if err := json.Unmarshal([]byte(out), &results); err != nil || code != exitOK || len(results) != 4 {
				t.Fatalf("exit %d, %v", code, err)
			}
			for _, r := range results {
				want := int64(300)
				if r.Drill == drill.Rollback {
					want = 200
				}
				if r.Created != want || r.Effect != want || r.Lost+r.OutOfOrder != 0 || r.Faults == 0 {
					t.Errorf("%+v, want %d orders with their effects", r, want)
				}
				if (r.Drill == drill.RelayCrash || r.Drill == drill.ConsumerCrash) && r.Duplicates == 0 {
					t.Errorf("%s: nothing came twice, so nothing was proved", r.Drill)
				}
			}
			of, err := dialect.For(db)
			if err != nil {
				t.Fatal(err)
			}
			if v, err := of.Applied(t.Context(), db, dialect.SetOutbox, dialect.DefaultPrefix); err != nil || v != 0 {
				t.Errorf("the drill left tables in the database it was given: %d, %v", v, err)
			}
		})
	}
}

func TestDrillUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"drill"}, {"drill", "flood"}, {"drill", "all", "--orders", "0"}, {"drill", "all", "--scale", "0"}} {
		if code, _, _ := call(t, args...); code != exitUsage {
			t.Errorf("%v: exit %d, want %d", args, code, exitUsage)
		}
	}
}
