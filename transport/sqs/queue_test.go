package sqs_test

import (
	"errors"
	"log/slog"
	"maps"
	"strings"
	"testing"

	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/sqs"
	"github.com/seambus/seambus/transport/sqs/internal/fakeaws"
)

// subscribe returns what starting a subscription says.
func subscribe(t *testing.T, tr *sqs.Transport, group string) error {
	t.Helper()
	sub, err := tr.Subscriber(transport.SubscriberConfig{Group: group, Concurrency: 1})
	if err != nil {
		t.Fatal(err)
	}
	_, err = sub.Subscribe(t.Context(), topic)
	return err
}

func newTransport(t *testing.T, b *fakeaws.Broker, opts ...sqs.Option) *sqs.Transport {
	t.Helper()
	tr, err := sqs.New(b, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	return tr
}

func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error lacks %q: %v", w, err)
		}
	}
}

func TestAMissingQueueIsAnErrorThatSaysWhatToDo(t *testing.T) {
	t.Parallel()
	b := fakeaws.New()
	tr := newTransport(t, b, sqs.WithSoleGroup(group))
	err := subscribe(t, tr, group)
	wantError(t, err, `queue "orders_fulfillment.fifo" does not exist`, "WithCreate")
	if !errors.Is(err, transport.ErrUnavailable) {
		t.Errorf("%v is not ErrUnavailable: somebody may create it", err)
	}
	wantError(t, tr.Publisher().Publish(topic, keyed("a", "a1")), `"orders_fulfillment.fifo" does not exist`)
	if q := b.Queues(); len(q) != 0 {
		t.Errorf("created %v", q)
	}
	b.MustCreate(queue, nil)
	publish(t, tr, keyed("a", "a1"))
}

func TestWhatIsCreatedIsAHighThroughputFIFOQueue(t *testing.T) {
	t.Parallel()
	b := fakeaws.New()
	if err := subscribe(t, newTransport(t, b, sqs.WithSoleGroup(group), sqs.WithCreate()), group); err != nil {
		t.Fatal(err)
	}
	got := b.Attributes(queue)
	for name, want := range map[string]string{
		"FifoQueue": "true", "DeduplicationScope": "messageGroup", "FifoThroughputLimit": "perMessageGroupId",
		"MessageRetentionPeriod": "1209600", "MaximumMessageSize": "1048576", "VisibilityTimeout": "30",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	drift, err := newTransport(t, b).Drift(t.Context(), topic, group)
	if err != nil || len(drift) != 0 {
		t.Errorf("drift %v, %v", drift, err)
	}
}

func TestAStandardQueueIsRefused(t *testing.T) {
	t.Parallel()
	b := fakeaws.New()
	_, err := sqs.New(b, sqs.WithQueue(topic, group, sqs.Queue{Name: "orders"}))
	wantError(t, err, `queue "orders"`, "ends in .fifo")
	b.MustCreate(queue, map[string]string{"FifoQueue": "true"})
	tr := newTransport(t, b, sqs.WithSoleGroup(group))
	b.SetAttribute(queue, "FifoQueue", "")
	wantError(t, subscribe(t, tr, group), "standard queue", "FIFO")
}

func TestDriftIsReportedAndMendedOnlyWhereConfigured(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, nil))
	for name, tc := range map[string]struct {
		opts   []sqs.Option
		mended bool
	}{
		"default":            {[]sqs.Option{sqs.WithSoleGroup(group), sqs.WithCreate(), sqs.WithLogger(logger)}, false},
		"external, altering": {[]sqs.Option{sqs.WithQueue(topic, group, sqs.Queue{External: true}), sqs.WithAlter(), sqs.WithCreate(), sqs.WithLogger(logger)}, false},
		"altering":           {[]sqs.Option{sqs.WithSoleGroup(group), sqs.WithAlter()}, true},
	} {
		b := fakeaws.New()
		b.MustCreate(queue, nil)
		before := b.Attributes(queue)
		log.Reset()
		if err := subscribe(t, newTransport(t, b, tc.opts...), group); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if changed := !maps.Equal(before, b.Attributes(queue)); changed != tc.mended {
			t.Errorf("%s: altered: %t, want %t", name, changed, tc.mended)
		}
		if reported := strings.Contains(log.String(), "attribute=FifoThroughputLimit is=perQueue want=perMessageGroupId"); reported == tc.mended {
			t.Errorf("%s: log %q", name, log.String())
		}
		drift, err := newTransport(t, b).Drift(t.Context(), topic, group)
		if err != nil || (len(drift) > 0) == tc.mended {
			t.Errorf("%s: drift %v, %v", name, drift, err)
		}
	}
}

func TestAnExternalQueueIsNeverCreated(t *testing.T) {
	t.Parallel()
	b := fakeaws.New()
	tr := newTransport(t, b, sqs.WithQueue(topic, group, sqs.Queue{Name: "php-orders.fifo", External: true}), sqs.WithCreate(), sqs.WithAlter())
	wantError(t, subscribe(t, tr, group), `"php-orders.fifo" does not exist`, "external", "owner")
	if q := b.Queues(); len(q) != 0 {
		t.Errorf("created %v", q)
	}
}

// A queue that takes less than the transport promises would refuse messages that were recorded already.
func TestAQueueForSmallerMessagesThanPromisedIsRefused(t *testing.T) {
	t.Parallel()
	b := fakeaws.New()
	b.MustCreate(queue, map[string]string{"MaximumMessageSize": "262144"})
	wantError(t, subscribe(t, newTransport(t, b, sqs.WithSoleGroup(group)), group), "262144", "1048576", "WithMessageBytes(262144)")
	tr := newTransport(t, b, sqs.WithSoleGroup(group), sqs.WithMessageBytes(262144))
	if err := subscribe(t, tr, group); err != nil {
		t.Error(err)
	}
	if n := tr.Capabilities().Limits.MessageBytes; n > 262144 {
		t.Errorf("the limit is %d", n)
	}
}

func TestANativeRedriveThatBreaksOrderIsRefused(t *testing.T) {
	t.Parallel()
	for policy, ok := range map[string]bool{
		`{"deadLetterTargetArn":"arn:x","maxReceiveCount":5}`:     false,
		`{"deadLetterTargetArn":"arn:x","maxReceiveCount":"99"}`:  false,
		`{"deadLetterTargetArn":"arn:x","maxReceiveCount":"100"}`: true,
		`{"deadLetterTargetArn":"arn:x","maxReceiveCount":1000}`:  true,
		`nonsense`: false,
	} {
		b := fakeaws.New()
		b.MustCreate(queue, map[string]string{"RedrivePolicy": policy})
		err := subscribe(t, newTransport(t, b, sqs.WithSoleGroup(group)), group)
		if ok && err != nil {
			t.Errorf("%s: %v", policy, err)
		}
		if !ok {
			wantError(t, err, "redrive policy", "AllowNativeRedrive")
		}
		allowed := newTransport(t, b, sqs.WithQueue(topic, group, sqs.Queue{AllowNativeRedrive: true}))
		if err := subscribe(t, allowed, group); err != nil {
			t.Errorf("%s, allowed: %v", policy, err)
		}
	}
}

func TestTwoGroupsOnOneQueueAreRefused(t *testing.T) {
	t.Parallel()
	b := fakeaws.New()
	_, err := sqs.New(b, sqs.WithFanout(fakeaws.SNS{Broker: b}),
		sqs.WithQueue(topic, "a", sqs.Queue{Name: "shared.fifo"}), sqs.WithQueue(topic, "b", sqs.Queue{Name: "shared.fifo"}))
	wantError(t, err, `queue "shared.fifo"`, `"a"`, `"b"`)

	_, err = sqs.New(b, sqs.WithQueue(topic, "a", sqs.Queue{}), sqs.WithQueue(topic, "b", sqs.Queue{}))
	wantError(t, err, `topic "orders" has the groups`, "WithFanout")

	tr := newTransport(t, b, sqs.WithSoleGroup(group), sqs.WithCreate())
	wantError(t, subscribe(t, tr, "billing"), `"billing" would get nothing`, "WithFanout")

	named := newTransport(t, b, sqs.WithFanout(fakeaws.SNS{Broker: b}), sqs.WithCreate(),
		sqs.WithQueue(topic, "billing", sqs.Queue{Name: queue}))
	if err := subscribe(t, named, "billing"); err != nil {
		t.Fatal(err)
	}
	wantError(t, subscribe(t, named, group), "belongs to group", `"billing"`)
}

func TestNewReportsAllProblemsTogether(t *testing.T) {
	t.Parallel()
	_, err := sqs.New(nil, sqs.WithSoleGroup("No Name"), sqs.WithMessageBytes(1), sqs.WithQueue(topic, group, sqs.Queue{Name: "x"}))
	wantError(t, err, "client is nil", "No Name", "message bytes is 1", `queue "x"`)
	tr := newTransport(t, fakeaws.New())
	_, err = tr.Subscriber(transport.SubscriberConfig{Concurrency: -1})
	wantError(t, err, "group is empty", "concurrency is -1")
	wantError(t, tr.Publisher().Publish(topic, keyed("a", "a1")), "no queue is known", "WithQueue")
}

func TestNoRightsAreSaidSo(t *testing.T) {
	t.Parallel()
	b := fakeaws.New()
	b.Inject(fakeaws.Faults{Call: func(op string) error { return fakeaws.Error("AccessDenied", "not authorized to perform sqs:%s", op) }})
	err := subscribe(t, newTransport(t, b, sqs.WithSoleGroup(group)), group)
	wantError(t, err, "look up queue", "not authorized to perform sqs:GetQueueUrl")
	if !errors.Is(err, transport.ErrUnavailable) {
		t.Errorf("%v is not ErrUnavailable", err)
	}
}
