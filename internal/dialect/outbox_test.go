package dialect_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seambus/seambus/internal/dialect"
)

func openOutbox(t *testing.T) dialect.Outbox {
	t.Helper()
	db := open(t)
	d, err := dialect.For(db)
	if err == nil {
		err = d.Migrate(t.Context(), db, dialect.SetOutbox)
	}
	if err != nil {
		t.Fatal(err)
	}
	o, err := dialect.OpenOutbox(t.Context(), db, dialect.DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Insert(t.Context(), db, []dialect.Row{{ID: "1", Topic: "t", Type: "x", Key: "k", Shard: -1}}); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestMarkIsFenced(t *testing.T) {
	t.Parallel()
	o := openOutbox(t)
	now, ttl := time.Now(), time.Second
	renew := func(owner string, at time.Time) dialect.Claim {
		t.Helper()
		c, err := o.Renew(t.Context(), owner, at, ttl)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a := renew("a", now)
	if len(a.Tokens) != dialect.Ranges {
		t.Fatalf("the first relay has %d ranges, want all", len(a.Tokens))
	}
	for i := range 50 { // a recovery that is run often finds nothing while the lease is good
		if b := renew("b", now.Add(time.Duration(i)*10*time.Millisecond)); len(b.Tokens) != 0 {
			t.Fatalf("the second relay took %d ranges of a live one", len(b.Tokens))
		}
	}
	later := now.Add(2 * ttl)
	b := renew("b", later)
	if len(b.Tokens) != dialect.Ranges || b.Tokens[0] <= a.Tokens[0] {
		t.Fatalf("after the lease: %d ranges, token %d after %d", len(b.Tokens), b.Tokens[0], a.Tokens[0])
	}
	for _, c := range []struct {
		owner string
		token int64
		want  int64
	}{{"a", a.Tokens[0], 0}, {"b", a.Tokens[0], 0}, {"b", b.Tokens[0], 1}} {
		f := dialect.Fence{Owner: c.owner, Token: c.token}
		adopt(t, o)
		n, err := o.Mark(t.Context(), f, []int64{1}, later, false)
		if err != nil || n != c.want {
			t.Errorf("mark by %s under %d changed %d rows, %v; want %d", c.owner, c.token, n, err, c.want)
		}
	}
}

func adopt(t *testing.T, o dialect.Outbox) {
	t.Helper()
	if err := o.Adopt(t.Context(), []*dialect.Row{{Seq: 1, Shard: 1}}); err != nil {
		t.Fatal(err)
	}
}

func TestRangesSpreadOverRelays(t *testing.T) {
	t.Parallel()
	o := openOutbox(t)
	now := time.Now()
	total := 0
	for i := range 5 {
		c, err := o.Renew(t.Context(), fmt.Sprint("r", i), now, time.Minute)
		if err != nil || c.Relays != i+1 {
			t.Fatalf("relay %d: %d relays, %v", i, c.Relays, err)
		}
	}
	for i := range 5 {
		c, err := o.Renew(t.Context(), fmt.Sprint("r", i), now, time.Minute)
		if err != nil || c.Share < 3 || c.Share > 4 {
			t.Errorf("relay %d: share %d, %v; want 3 or 4", i, c.Share, err)
		}
		total += c.Share
	}
	if total != dialect.Ranges {
		t.Errorf("shares sum to %d, want %d", total, dialect.Ranges)
	}
}
