package inbox_test

import (
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
)

func letter(id string, payload []byte) *event.DeadLetter {
	msg := message.NewMessage(id, payload)
	msg.Metadata = message.Metadata{event.MetaID: id, event.MetaPartitionKey: "k", "note": "<ü>\n\x00"}
	at := time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
	return &event.DeadLetter{
		Message: msg, Topic: "orders", Group: group, Handler: "ship", ID: id, Source: "shop", Key: "k",
		Class: event.ClassTransient, Reason: "no stock", Attempts: 10, FirstAttempt: at.Add(-time.Hour), Time: at,
	}
}

func put(t testing.TB, in *inbox.Inbox, l *event.DeadLetter) {
	t.Helper()
	if err := in.Put(t.Context(), l); err != nil {
		t.Fatal(err)
	}
}

func parked(t testing.TB, in *inbox.Inbox, f inbox.Filter) []inbox.Parked {
	t.Helper()
	all, err := in.Parked(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestDeadLetterKeepsAllThatIsNeededToDeliverItAgain(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	for _, payload := range [][]byte{nil, {}, {0x00, 0xff, 0xfe}, make([]byte, 1<<20)} {
		l := letter(event.NewID(), payload)
		put(t, b.in, l)
		all := parked(t, b.in, inbox.Filter{})
		got := all[len(all)-1]
		want := inbox.Parked{DeadLetter: *l, Sequence: int64(len(all)), State: inbox.StateDead}
		opts := []cmp.Option{cmpopts.IgnoreUnexported(message.Message{}), cmpopts.EquateEmpty()}
		if diff := cmp.Diff(want, got, opts...); diff != "" {
			t.Errorf("%d bytes of payload (-put +read):\n%s", len(payload), diff)
		}
	}
}

func TestDeadLetterPutTwiceIsRenewed(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	first := letter("e1", []byte("{}"))
	put(t, b.in, first)
	put(t, b.in, letter("e2", []byte("{}")))
	again := letter("e1", []byte("{}"))
	again.Attempts, again.Reason, again.FirstAttempt = 20, "still no stock", first.Time
	put(t, b.in, again)

	all := parked(t, b.in, inbox.Filter{})
	if len(all) != 2 || all[0].ID != "e1" || all[0].Attempts != 20 || all[0].Reason != "still no stock" {
		t.Fatalf("got %+v", all)
	}
	if !all[0].FirstAttempt.Equal(first.FirstAttempt) {
		t.Errorf("first attempt is %v, want the earliest, %v", all[0].FirstAttempt, first.FirstAttempt)
	}
}

func TestUnreadableMessageIsKeptByWhateverNamesIt(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	byUUID := &event.DeadLetter{Message: message.NewMessage("u1", []byte("garbage")), Group: group, Class: event.ClassContract}
	put(t, b.in, byUUID)
	put(t, b.in, byUUID)
	nameless := &event.DeadLetter{Message: message.NewMessage("", nil), Group: group, Class: event.ClassContract}
	put(t, b.in, nameless)
	put(t, b.in, nameless)

	all := parked(t, b.in, inbox.Filter{})
	if len(all) != 3 || all[0].ID != "u1" || all[1].ID == "" || all[1].Message.UUID != "" || all[1].ID == all[2].ID {
		t.Errorf("got %+v", all)
	}
	if all[0].Time.IsZero() || !all[0].FirstAttempt.IsZero() {
		t.Errorf("times are %v and %v, want one and none", all[0].Time, all[0].FirstAttempt)
	}
	if err := b.in.Put(t.Context(), &event.DeadLetter{ID: "e1"}); err == nil {
		t.Error("a letter without a message was accepted")
	}
}

func TestParkedEventsAreFilteredAndPaged(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	for _, id := range []string{"c", "a", "b"} {
		put(t, b.in, letter(id, nil))
	}
	other := letter("a", nil)
	other.Group, other.Topic, other.Key = "billing", "payments", "l"
	put(t, b.in, other)

	for _, c := range []struct {
		f    inbox.Filter
		want string
	}{
		{inbox.Filter{}, "caba"},
		{inbox.Filter{Group: group}, "cab"},
		{inbox.Filter{Topic: "payments"}, "a"},
		{inbox.Filter{Key: "k", State: inbox.StateDead}, "cab"},
		{inbox.Filter{Group: group, Topic: "payments"}, ""},
		{inbox.Filter{State: "held"}, ""},
	} {
		ids := ""
		for f := c.f; ; { // page by page
			f.Limit = 2
			page := parked(t, b.in, f)
			for _, p := range page {
				ids += p.ID
				f.After = p.Sequence
			}
			if len(page) < 2 {
				break
			}
		}
		n, err := b.in.CountParked(t.Context(), c.f)
		if ids != c.want || n != len(c.want) || err != nil {
			t.Errorf("%+v: got %q, count %d, %v, want %q", c.f, ids, n, err, c.want)
		}
	}
}

func TestMetadataSurvivesByteForByte(t *testing.T) {
	t.Parallel()
	b := newBundle(t, 1)
	rapid.Check(t, func(rt *rapid.T) {
		anyText := rapid.Map(rapid.SliceOf(rapid.Byte()), func(p []byte) string { return string(p) })
		value := rapid.OneOf(rapid.String(), anyText)
		want := message.Metadata(rapid.MapOf(value, value).Draw(rt, "metadata"))
		l := &event.DeadLetter{Message: message.NewMessage("e1", nil), Group: group}
		l.Message.Metadata = want
		put(t, b.in, l)
		if got := parked(t, b.in, inbox.Filter{})[0].Message.Metadata; !maps.Equal(got, want) {
			rt.Fatalf("got %q, want %q", got, want)
		}
	})
}
