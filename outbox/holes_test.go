package outbox_test

import (
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/seambus/seambus/outbox"
)

// A row takes its number, rows of other keys are published, then it is committed and at once another of its key.
func TestALateCommitIsSentBeforeTheNextOfItsKey(t *testing.T) { // C01
	t.Parallel()
	eachServer(t, func(t *testing.T, db *sql.DB) {
		f := newFake()
		box := newBox(t, db, f, outbox.WithPoll(time.Second))
		start(t, t.Context(), box)
		const rounds = 20
		for i := range rounds {
			n := 3 * i
			late := begin(t, db)
			check(t, box.Record(t.Context(), late, notes, note{Key: "a", N: 2*i + 1, ID: fmt.Sprintf("a-%d", 2*i+1)}))
			record(t, box, note{Key: "b", N: i + 1, ID: fmt.Sprintf("b-%d", i+1)})
			f.await(t, n+1) // the cursor is past the late row
			check(t, late.Commit())
			record(t, box, note{Key: "a", N: 2*i + 2, ID: fmt.Sprintf("a-%d", 2*i+2)})
			f.await(t, n+3)
		}
		wantOrder(t, perKey(f.all())["a"], "a", 2*rounds)
		wantOrder(t, perKey(f.all())["b"], "b", rounds)
	})
}
