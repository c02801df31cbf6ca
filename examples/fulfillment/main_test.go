package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/seambus/seambus/examples/fulfillment/chaos"
	"github.com/seambus/seambus/examples/fulfillment/monolith"
	"github.com/seambus/seambus/examples/fulfillment/report"
)

// TestMain runs the program itself where a test starts this binary as one.
func TestMain(m *testing.M) {
	if args, ok := os.LookupEnv("FULFILLMENT_ARGS"); ok {
		os.Args = append(os.Args[:1], strings.Fields(args)...)
		main()
	}
	goleak.VerifyTestMain(m)
}

// command runs in this process and returns its status and what it printed.
func command(t *testing.T, args ...string) (status int, r report.Report, stdout, stderr string) {
	t.Helper()
	errFile, err := os.CreateTemp(t.TempDir(), "stderr")
	if err != nil {
		t.Fatal(err)
	}
	defer errFile.Close()
	var out bytes.Buffer
	status = run(t.Context(), args, &out, errFile)
	text, err := os.ReadFile(errFile.Name())
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil && strings.Contains(strings.Join(args, " "), "--json") && status != exitUsage {
		t.Fatalf("standard output is not one JSON object: %v\n%s", err, out.String())
	}
	return status, r, out.String(), string(text)
}

func TestChaosChangesNothing(t *testing.T) {
	t.Parallel()
	status, calm, _, stderr := command(t, "--orders", "150", "--seed", "5", "--chaos=false", "--json")
	if status != exitHeld || calm.Lost+calm.OrderViolations+calm.Duplicates+calm.Stale+calm.DeadLetters != 0 ||
		calm.Orders != 150 || calm.Applied != calm.Recorded || calm.Published != calm.Recorded {
		t.Fatalf("without chaos: status %d, %+v\n%s", status, calm, stderr)
	}
	status, wild, _, stderr := command(t, "--orders", "150", "--seed", "5", "--json")
	if status != exitHeld || wild.StateSHA256 != calm.StateSHA256 || wild.Lost+wild.OrderViolations != 0 || wild.Recorded != calm.Recorded {
		t.Fatalf("with chaos: status %d, %+v, want the state %s\n%s", status, wild, calm.StateSHA256, stderr)
	}
	for _, k := range chaos.Kinds() {
		if wild.Chaos[k] == 0 {
			t.Errorf("chaos.%s never happened", k)
		}
	}
	if wild.Duplicates == 0 || wild.Stale == 0 || wild.ContractBreaks == 0 {
		t.Errorf("chaos left no trace: %+v", wild)
	}
}

func writeInput(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "input.jsonl")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestBadLinesAreRefusedByNameAndTheRestGoesOn(t *testing.T) {
	t.Parallel()
	input := writeInput(t,
		`{"eventId":"a1","orderId":1,"status":"preparing","version":1,"occurredAt":"2026-01-01T00:00:00Z"}`,
		`not json`,
		`{"orderId":2,"status":"ready"}`,
		`{"eventId":"a2","orderId":1,"status":"vanished","version":2}`,
		`{"eventId":"`+strings.Repeat("x", 300)+`","orderId":1,"status":"ready","version":3}`,
		strings.Repeat("y", 5_000_000),
		``,
		`{"eventId":"a3","orderId":1,"status":"ready","version":4}`)
	keep := t.TempDir()
	status, r, _, stderr := command(t, "--input", input, "--json", "--keep", keep)
	if status != exitHeld || r.Recorded != 3 || r.Applied != 2 || r.ContractBreaks != 5 || r.DeadLetters != 5 || r.Orders != 1 || len(r.Chaos) != 0 {
		t.Errorf("status %d, %+v", status, r)
	}
	for _, want := range []string{
		"input.jsonl:2: not an order event: invalid character", "input.jsonl:3: not an order event: eventId, version missing",
		"input.jsonl:5: ", "id has 300 bytes", "input.jsonl:6: not an order event: the line has 5000000 bytes",
	} {
		if !strings.Contains(stderr, want) {
			t.Errorf("standard error lacks %q:\n%.2000s", want, stderr)
		}
	}
	db, closeDB, err := open(filepath.Join(keep, "monolith.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer closeDB()
	var size int
	if err := db.QueryRow(`SELECT length(payload) FROM seambus_parked WHERE event_id = 'input.jsonl:6'`).Scan(&size); err != nil || size != 5_000_000 {
		t.Errorf("the raw bytes kept are %d, %v", size, err)
	}
}

func TestWhatCannotBeCarriedOutSaysWhy(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"no file":      {[]string{"--input", "/nowhere/orders.jsonl"}, "/nowhere/orders.jsonl: no such file"},
		"empty file":   {[]string{"--input", writeInput(t, "")}, "the input is empty"},
		"not gzip":     {[]string{"--input", writeInput(t, "x") + "/../input.jsonl.gz"}, "input.jsonl.gz"},
		"unknown flag": {[]string{"--inptu", "x"}, "-inptu"},
		"an argument":  {[]string{"orders.jsonl"}, `"orders.jsonl": a file is given by --input`},
		"no orders":    {[]string{"--orders", "0"}, "--orders is 0"},
		"keep a file":  {[]string{"--keep", writeInput(t, "x")}, "--keep"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, _, _, stderr := command(t, tc.args...)
			if status != exitUsage || !strings.Contains(stderr, tc.says) {
				t.Errorf("status %d, standard error %q, want %q", status, stderr, tc.says)
			}
		})
	}
}

// program starts this test binary as the program.
func program(t *testing.T, args string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), "FULFILLMENT_ARGS="+args)
	return cmd
}

// awaitRows returns once the monolith has recorded something in dir.
func awaitRows(t *testing.T, dir string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for time.Now().Before(deadline) {
		if db, closeDB, err := open(filepath.Join(dir, "monolith.db")); err == nil {
			var n int
			err := db.QueryRow(`SELECT count(*) FROM seambus_outbox WHERE state = 3`).Scan(&n)
			closeDB()
			if err == nil && n > 100 {
				return
			}
		}
		if err := pause(context.Background(), 5*time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("nothing was published within a minute")
}

// Killed in the middle and started again on the same directory: nothing is lost and the state is that of an undisturbed run.
func TestKilledAndStartedAgainLosesNothing(t *testing.T) {
	t.Parallel()
	status, calm, _, stderr := command(t, "--orders", "500", "--seed", "9", "--chaos=false", "--json")
	if status != exitHeld {
		t.Fatalf("undisturbed: status %d\n%s", status, stderr)
	}
	keep := t.TempDir()
	first := program(t, "--orders 500 --seed 9 --chaos=false --json --keep "+keep)
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	awaitRows(t, keep)
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := first.Wait(); err == nil {
		t.Log("it was done before it could be killed")
	}
	status, r, _, stderr := command(t, "--orders", "500", "--seed", "9", "--chaos=false", "--json", "--keep", keep)
	if status != exitHeld || r.StateSHA256 != calm.StateSHA256 || r.Lost+r.OrderViolations != 0 || r.Applied != calm.Applied {
		t.Errorf("status %d, %+v, want state %s\n%s", status, r, calm.StateSHA256, stderr)
	}
}

// The first interrupt finishes what has been recorded and reports.
func TestInterruptDrainsAndReports(t *testing.T) {
	t.Parallel()
	keep := t.TempDir()
	cmd := program(t, "--orders 200000 --chaos=false --json --keep "+keep)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	awaitRows(t, keep)
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	var r report.Report
	text, err := io.ReadAll(out)
	if err = errors.Join(err, json.Unmarshal(text, &r), cmd.Wait()); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if r.Recorded == 0 || r.Applied != r.Recorded || r.Lost+r.OrderViolations != 0 {
		t.Errorf("%+v", r)
	}
}

func TestGeneratedOrdersAreTheSameForTheSameSeed(t *testing.T) {
	t.Parallel()
	all := func(seed uint64) string {
		g, b := monolith.NewGenerator(seed, 50), strings.Builder{}
		for {
			l, err := g.Next()
			if errors.Is(err, io.EOF) {
				return b.String()
			}
			text, err := json.Marshal(l.Event)
			if err != nil {
				t.Fatal(err)
			}
			b.Write(text)
		}
	}
	if all(1) != all(1) || all(1) == all(2) {
		t.Error("the seed does not decide")
	}
}

// A real stream, where it is at hand: SEAMBUS_INCIDENTS names it, or it lies beside the checkout.
func TestIncidentsStream(t *testing.T) {
	path := os.Getenv("SEAMBUS_INCIDENTS")
	if path == "" {
		path = "../../../shared/data/orders-incidents.jsonl.gz"
	}
	if raceEnabled {
		t.Skip("it takes minutes with the race detector: run it without")
	}
	if _, err := os.Stat(path); err != nil || testing.Short() {
		t.Skipf("no stream of incidents here: set SEAMBUS_INCIDENTS to a file of them (%v)", err)
	}
	const state = "261d7510ef2ea1b98ce842a6df79ee1ca5ec5e7f48561f90fa989aaa35fcf4b1"
	for _, flag := range []string{"--chaos=false", "--chaos"} {
		status, r, _, stderr := command(t, "--input", path, "--json", flag)
		if status != exitHeld || r.Recorded != 65533 || r.Applied != 65528 || r.Orders != 7554 || r.Lost+r.OrderViolations != 0 ||
			r.StateSHA256 != state || flag != "--chaos" && r.ContractBreaks != 5 {
			t.Errorf("%s: status %d, %+v\n%s", flag, status, r, stderr)
		}
	}
}
