package main

import (
	"os"
	"strings"
	"testing"
)

// The same orders end in the same state on every database.
func TestEveryDatabaseEndsInTheSameState(t *testing.T) {
	t.Parallel()
	args := []string{"--orders", "60", "--seed", "5", "--json"}
	status, want, _, stderr := command(t, args...)
	if status != exitHeld {
		t.Fatalf("status %d\n%s", status, stderr)
	}
	for name, variable := range map[string]string{"postgres": "SEAMBUS_POSTGRES_URL", "mysql": "SEAMBUS_MYSQL_URL"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := os.Getenv(variable)
			switch {
			case url != "":
			case os.Getenv("CI") == "true":
				t.Fatalf("%s is not set: run scripts/services up, then eval \"$(scripts/services env)\"", variable)
			default:
				t.Skipf("%s is not set: run scripts/services up, then eval \"$(scripts/services env)\"", variable)
			}
			status, r, _, stderr := command(t, append(args, "--db", url)...)
			if status != exitHeld || r.Lost+r.OrderViolations != 0 || r.StateSHA256 != want.StateSHA256 || r.Applied != want.Applied {
				t.Errorf("status %d, %+v, want the state %s\n%s", status, r, want.StateSHA256, stderr)
			}
		})
	}
}

func TestUnknownDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--db", "oracle://x"}, {"--db", "postgres://127.0.0.1:1/x"}, {"--db", "mysql://127.0.0.1:1/", "--keep", "no/name"}} {
		status, _, _, stderr := command(t, args...)
		if status != exitUsage || !strings.Contains(stderr, "--db") && !strings.Contains(stderr, "--keep") {
			t.Errorf("%v: status %d, %s", args, status, stderr)
		}
	}
}
