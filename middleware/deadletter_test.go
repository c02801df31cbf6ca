package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/transport"
)

// The order of dead letter and retry must not matter: all attempts, then exactly one letter.
func TestDeadLetterWaitsForTheLastAttemptInsideAndOutsideRetry(t *testing.T) {
	t.Parallel()
	for _, inside := range []bool{false, true} {
		for _, counted := range []bool{false, true} {
			t.Run(fmt.Sprintf("inside %t counted %t", inside, counted), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					dead, calls := new(letters), 0
					links := []message.HandlerMiddleware{middleware.DeadLetter(dead), mustRetry(middleware.RetryPolicy{MaxAttempts: 4})}
					if inside {
						links[0], links[1] = links[1], links[0]
					}
					if counted {
						links = append(links, middleware.Attempts(middleware.NewMemoryAttempts()))
					}
					if _, err := chain(failing(99, &calls), links...)(newMessage("1")); err != nil {
						t.Errorf("the message was not settled: %v", err)
					}
					if calls != 4 || len(dead.all) != 1 || dead.all[0].Attempts != 4 {
						t.Errorf("%d calls, letters %+v; want 4 and one", calls, dead.all)
					}
				})
			})
		}
	}
}

// The handler ran into its timeout: the letter is written with a context that lives.
func TestDeadLetterHasADeadlineOfItsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dead := new(letters)
		for _, link := range []message.HandlerMiddleware{
			middleware.Timeout(10 * time.Millisecond), // outside: the message's own context is dead when the letter is due
			func(next message.HandlerFunc) message.HandlerFunc { return next },
		} {
			_, err := chain(func(m *message.Message) ([]*message.Message, error) {
				<-m.Context().Done()
				return nil, m.Context().Err()
			}, link, middleware.DeadLetter(dead), middleware.Timeout(10*time.Millisecond))(newMessage("1"))
			if err != nil {
				t.Errorf("the letter was not written: %v", err)
			}
		}
		if len(dead.all) != 2 || dead.all[0].Class != event.ClassTimeout {
			t.Errorf("letters %+v", dead.all)
		}
	})
}

func TestDeadLetterNeverGivesUpACutOffHandler(t *testing.T) {
	t.Parallel()
	for _, cause := range []error{transport.ErrShutdown, transport.ErrLeaseLost, context.Canceled, errors.New("deploy")} {
		dead := new(letters)
		ctx, cancel := context.WithCancelCause(t.Context())
		msg := newMessage("1")
		deliver(ctx, msg, 1)
		_, err := chain(func(m *message.Message) ([]*message.Message, error) {
			cancel(cause)
			return nil, event.Permanent(m.Context().Err())
		}, middleware.DeadLetter(dead))(msg)
		if err == nil || len(dead.all) != 0 {
			t.Errorf("%v: error %v, letters %d; want the error and none", cause, err, len(dead.all))
		}
	}
}

func TestDeadLetterKeepsTheMessageIfTheLetterCannotBeWritten(t *testing.T) {
	t.Parallel()
	dead := &letters{err: errors.New("store is down")}
	msg := newMessage("1")
	d := deliver(t.Context(), msg, 1)
	_, err := chain(func(*message.Message) ([]*message.Message, error) { return nil, event.Permanent(errBoom) },
		middleware.DeadLetter(dead))(msg)
	if !errors.Is(err, dead.err) || d.Delay() <= 0 {
		t.Errorf("got %v with delay %v, want the store's error and a pause", err, d.Delay())
	}
}

type hostile struct{ text func() string }

func (e hostile) Error() string { return e.text() }

func TestDeadLetterCannotFailByWhatItCarries(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]func() string{
		"NUL":           func() string { return "a\x00b" },
		"invalid UTF-8": func() string { return "a\xff\xfeb" },
		"2 MB":          func() string { return strings.Repeat("é", 1<<20) },
		"empty":         func() string { return "" },
		"panics":        func() string { panic("no text") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dead := new(letters)
			msg := newMessage("1")
			msg.Metadata["h"], msg.Payload = "v", []byte("raw\x00\xff")
			_, err := chain(func(m *message.Message) ([]*message.Message, error) {
				return []*message.Message{newMessage("half-done")}, event.Permanent(hostile{text})
			}, middleware.DeadLetter(dead))(msg)
			if err != nil || len(dead.all) != 1 {
				t.Fatalf("%v, %d letters", err, len(dead.all))
			}
			got := dead.all[0]
			if r := got.Reason; r == "" || len(r) > 1024 || !utf8.ValidString(r) || strings.ContainsRune(r, 0) {
				t.Errorf("reason %.80q of %d bytes", r, len(r))
			}
			if got.Message == msg || string(got.Message.Payload) != "raw\x00\xff" || got.Message.Metadata["h"] != "v" ||
				got.Message.Metadata[event.MetaDeadReason] != "" {
				t.Errorf("letter is about %+v", got.Message)
			}
		})
	}
}

// Producers who keep no contract give one id, or none, to different messages: none of them may take another's place.
func TestDeadLettersOfForeignMessagesAreToldApart(t *testing.T) {
	t.Parallel()
	dead := new(letters)
	h := chain(func(*message.Message) ([]*message.Message, error) { return nil, event.Contract(errBoom) }, middleware.DeadLetter(dead))
	seen := make(map[string]int)
	for _, m := range []*message.Message{
		message.NewMessage("same", []byte("one")), message.NewMessage("same", []byte("two")), message.NewMessage("same", []byte("one")),
		message.NewMessage("", []byte("one")), message.NewMessage("\xff", []byte("one")), newMessage("e-1"),
	} {
		if _, err := h(m); err != nil {
			t.Fatal(err)
		}
		seen[dead.all[len(dead.all)-1].ID]++
	}
	if len(seen) != 4 || seen["e-1"] != 1 {
		t.Errorf("ids %v, want the repeated message's twice, one more of its kind, one without an id, and e-1", seen)
	}
}

// limitedPublisher is a transport on which the message fits and its annotations do not.
type limitedPublisher struct {
	recordingPublisher
	limits transport.Limits
}

func (p *limitedPublisher) Publish(topic string, msgs ...*message.Message) error {
	if err := p.limits.Check(msgs[0]); err != nil {
		return err
	}
	return p.recordingPublisher.Publish(topic, msgs...)
}

func TestDeadLetterDoesNotFailForItsAnnotations(t *testing.T) {
	t.Parallel()
	msg := newMessage("e-1")
	pub := &limitedPublisher{recordingPublisher{make(map[string][]*message.Message)}, transport.Limits{Headers: len(msg.Metadata)}}
	_, err := chain(func(*message.Message) ([]*message.Message, error) { return nil, event.Permanent(errBoom) },
		middleware.DeadLetter(middleware.PublishDeadLetters(pub, "dead")))(msg)
	if err != nil || len(pub.sent["dead"]) != 1 || pub.sent["dead"][0].UUID != "e-1" {
		t.Errorf("%v, sent %v", err, pub.sent)
	}
}

type recordingPublisher struct{ sent map[string][]*message.Message }

func (p *recordingPublisher) Publish(topic string, msgs ...*message.Message) error {
	p.sent[topic] = append(p.sent[topic], msgs...)
	return nil
}

func (*recordingPublisher) Close() error { return nil }

func ExampleDeadLetter() {
	pub := &recordingPublisher{sent: make(map[string][]*message.Message)}
	store := middleware.PublishDeadLetters(pub, "orders_print_dead")
	route(func(*message.Message) ([]*message.Message, error) {
		return nil, event.Permanent(errors.New("no such order"))
	}, middleware.DeadLetter(store))
	for _, m := range pub.sent["orders_print_dead"] {
		fmt.Println(m.UUID, m.Metadata[event.MetaDeadReason], m.Metadata[event.MetaDeadHandler], m.Metadata[event.MetaPartitionKey])
	}
	// Output: e-1 no such order print 41
}

// In a plain router a nack is redelivered at once: while no letter can be written that must not become a storm.
func TestUnwrittenLetterHoldsAPlainRouterBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dead, began := &letters{err: errBoom}, time.Now()
		msg := newMessage("1")
		msg.SetContext(t.Context())
		_, err := chain(func(*message.Message) ([]*message.Message, error) { return nil, event.Permanent(errBoom) },
			middleware.DeadLetter(dead))(msg)
		if err == nil || time.Since(began) != 5*time.Second {
			t.Errorf("%v after %v, want an error after 5s", err, time.Since(began))
		}
	})
}

func TestDeadLetterHasTheBrokersKeyWhereTheMessageHasNone(t *testing.T) {
	t.Parallel()
	dead, msg := new(letters), message.NewMessage("foreign", []byte("{"))
	deliver(t.Context(), msg, 1)
	_, _ = chain(func(*message.Message) ([]*message.Message, error) { return nil, event.Permanent(errBoom) }, middleware.DeadLetter(dead))(msg)
	if len(dead.all) != 1 || dead.all[0].Key != "41" {
		t.Errorf("letters %+v, want the delivery's key", dead.all)
	}
}

// circle is an error that wraps itself.
type circle struct{}

func (circle) Error() string   { return "round" }
func (c circle) Unwrap() error { return c }

func TestErrorThatWrapsItselfIsGivenUpLikeAnyOther(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]message.HandlerFunc{
		"returned": func(*message.Message) ([]*message.Message, error) { return nil, circle{} },
		"panicked": func(*message.Message) ([]*message.Message, error) { panic(circle{}) },
	} {
		dead := new(letters)
		_, err := chain(h, middleware.Recover(), middleware.DeadLetter(dead), mustRetry(middleware.RetryPolicy{MaxAttempts: 1}),
			middleware.Attempts(middleware.NewMemoryAttempts()), middleware.Recover())(newMessage("1"))
		if err != nil || len(dead.all) != 1 || !strings.Contains(dead.all[0].Reason, "round") {
			t.Errorf("%s: %v, letters %+v", name, err, dead.all)
		}
	}
}

// A letter tells of every attempt, oldest first, and of the newest where there were too many.
func TestDeadLetterTellsEveryAttempt(t *testing.T) {
	t.Parallel()
	for attempts, first := range map[int]int{3: 1, 60: 11} {
		dead, calls := new(letters), 0
		h := chain(func(*message.Message) ([]*message.Message, error) {
			calls++
			return nil, fmt.Errorf("boom\x00 %d", calls)
		}, middleware.DeadLetter(dead), mustRetry(middleware.RetryPolicy{MaxAttempts: attempts}),
			middleware.Attempts(middleware.NewMemoryAttempts()))
		for n := range attempts {
			msg := newMessage("1")
			deliver(t.Context(), msg, n+1)
			_, _ = h(msg)
		}
		if len(dead.all) != 1 {
			t.Fatalf("%d letters", len(dead.all))
		}
		history := dead.all[0].History
		if len(history) != attempts-first+1 || history[0].Attempt != first || history[0].Reason != fmt.Sprint("boom  ", first) ||
			history[0].Class != event.ClassTransient || history[0].Node == "" || history[0].Time.IsZero() {
			t.Errorf("%d attempts: history of %d beginning %+v", attempts, len(history), history[0])
		}
	}
}
