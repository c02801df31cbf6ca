package main

import (
	"path/filepath"
	"testing"
)

// The report is only worth something if it sees what went wrong: each case harms the databases of a finished run, and the next
// run on them, which finds nothing to do, must tell.
func TestReportSeesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		harm             string
		lost, violations int64
	}{
		"nothing": {harm: `SELECT 1`},
		"an event is gone": {
			harm: `DELETE FROM seambus_inbox WHERE event_id = 'b1'`, lost: 1,
		},
		"an event was handled after a later one and refused": {
			harm: `UPDATE seambus_inbox SET stale = 1, seq = seq + 100 WHERE event_id = 'a1'`, violations: 1,
		},
		"an event was handled after a later one": {
			harm: `UPDATE seambus_inbox SET seq = seq + 100 WHERE event_id = 'a1'`, violations: 1,
		},
		// A relay that died before it could mark sends once more what is among the dead letters already.
		"a dead letter came again and was refused": {
			harm: `INSERT INTO seambus_inbox (grp, source, event_id, topic, partition_key, handled_at, stale)
				SELECT grp, source, event_id, topic, partition_key, parked_at, 1 FROM seambus_parked WHERE event_id = 'b2'`,
		},
		"a dead letter was applied after a later event": {
			harm: `INSERT INTO seambus_inbox (grp, source, event_id, topic, partition_key, handled_at, stale)
				SELECT grp, source, event_id, topic, partition_key, parked_at, 0 FROM seambus_parked WHERE event_id = 'b2'`, violations: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := []string{"--json", "--keep", t.TempDir(), "--input", writeInput(t,
				`{"eventId":"a1","orderId":1,"status":"preparing","version":1}`,
				`{"eventId":"a2","orderId":1,"status":"ready","version":2}`,
				`{"eventId":"b1","orderId":2,"status":"preparing","version":1}`,
				`{"eventId":"b2","orderId":2,"status":"vanished","version":2}`,
				`{"eventId":"b3","orderId":2,"status":"ready","version":3}`)}
			if status, r, _, stderr := command(t, args...); status != exitHeld || r.ContractBreaks != 1 {
				t.Fatalf("status %d, %+v\n%s", status, r, stderr)
			}
			db, closeDB, err := open(filepath.Join(args[2], "service.db"))
			if err != nil {
				t.Fatal(err)
			}
			_, err = db.Exec(tc.harm)
			closeDB()
			if err != nil {
				t.Fatal(err)
			}
			status, r, _, stderr := command(t, args...)
			want := exitHeld
			if tc.lost+tc.violations > 0 {
				want = exitBroken
			}
			if status != want || r.Lost != tc.lost || r.OrderViolations != tc.violations {
				t.Errorf("status %d, %+v\n%s", status, r, stderr)
			}
		})
	}
}
