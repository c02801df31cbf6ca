package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/internal/dialect/dialecttest"
)

func call(t *testing.T, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	code = run(context.Background(), args, &o, &e)
	return code, o.String(), e.String()
}

const variable = "SEAMBUS_COMMAND_TEST_DSN"

func TestMigrate(t *testing.T) {
	databases := map[string]func(testing.TB) dialecttest.Database{
		"sqlite": dialecttest.SQLite, "postgres": dialecttest.Postgres, "mysql": dialecttest.MySQL,
	}
	for name, database := range databases {
		t.Run(name, func(t *testing.T) {
			d := database(t)
			t.Setenv(variable, d.DSN)
			migrate := func(what ...string) []string {
				return append([]string{"migrate", "--dialect", name, "--dsn-env", variable, "--set", "outbox"}, what...)
			}
			if code, out, _ := call(t, migrate("status", "--json")...); code != exitPending || !strings.Contains(out, `"0001_init"`) {
				t.Errorf("status before: exit %d, %s", code, out)
			}
			if code, out, errOut := call(t, migrate("up")...); code != exitOK || out != "outbox: applied 0001_init\n" {
				t.Fatalf("up: exit %d, %s%s", code, out, errOut)
			}
			if code, out, _ := call(t, migrate("up")...); code != exitOK || out != "outbox: up to date at version 1\n" {
				t.Errorf("up again: exit %d, %s", code, out)
			}
			if code, out, _ := call(t, migrate("status")...); code != exitOK || out != "outbox: version 1 of 1\n" {
				t.Errorf("status after: exit %d, %s", code, out)
			}
			db := d.Open(t)
			if _, err := dialect.OpenOutbox(t.Context(), db, dialect.DefaultPrefix); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPrintedSQLIsWhatUpApplies feeds what is printed to the server's own client.
func TestPrintedSQLIsWhatUpApplies(t *testing.T) {
	d := dialecttest.Postgres(t)
	code, text, errOut := call(t, "migrate", "print", "--dialect", "postgres", "--prefix", "shop_", "--set", "outbox")
	if code != exitOK || !strings.Contains(text, "CREATE TABLE shop_outbox") || strings.Contains(text, "seambus_") {
		t.Fatalf("exit %d, %s%s", code, text, errOut)
	}
	if _, err := d.Open(t).Exec(text); err != nil {
		t.Error(err)
	}
}

func TestWrongUsage(t *testing.T) {
	t.Setenv(variable, "")
	for _, c := range []struct{ args, want string }{
		{"migrate", "up, status or print"},
		{"migrate up", "--dialect"},
		{"migrate up --dialect oracle --prefix A", "--prefix"},
		{"migrate up --dialect postgres --set mail", `"mail" is none of`},
		{"migrate up --dialect postgres --dsn-env " + variable, variable + " is empty"},
		{"migrate up now --dialect postgres", "unknown command"},
		{"migrate up --no-such-flag", "no-such-flag"},
	} {
		if code, _, errOut := call(t, strings.Fields(c.args)...); code != exitUsage || !strings.Contains(errOut, c.want) {
			t.Errorf("%s: exit %d, %q; want %d and %q", c.args, code, errOut, exitUsage, c.want)
		}
	}
}

func TestUnreachableDatabase(t *testing.T) {
	t.Setenv(variable, "postgres://nobody:secret@127.0.0.1:1/x?sslmode=disable")
	code, _, errOut := call(t, "migrate", "up", "--dialect", "postgres", "--dsn-env", variable)
	if code != exitFailed || !strings.Contains(errOut, "reach the database in "+variable) || strings.Contains(errOut, "secret") {
		t.Errorf("exit %d, %s", code, errOut)
	}
}

func TestTheBinaryExitsWithItsCode(t *testing.T) {
	if os.Getenv("SEAMBUS_TEST_MAIN") != "" {
		os.Args = []string{"seambus", "migrate", "up"}
		main()
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTheBinaryExitsWithItsCode$")
	cmd.Env = append(os.Environ(), "SEAMBUS_TEST_MAIN=1")
	_ = cmd.Run()
	if code := cmd.ProcessState.ExitCode(); code != exitUsage {
		t.Errorf("exit code %d, want %d", code, exitUsage)
	}
}
