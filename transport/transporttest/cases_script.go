package transporttest

import (
	"fmt"
	"strings"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/middleware"
	"github.com/seambus/seambus/transport"
)

// script plays the failure script below the standard chain, with dead letters on a topic of the transport.
func script(e *env) error {
	player := NewPlayer(e.Unit)
	deadTopic, err := e.Topic(e.ctx)
	if err != nil {
		return err
	}
	chain, err := scriptChain(player, e.transport.Publisher(), deadTopic, e)
	if err != nil {
		return err
	}
	m, err := e.join(e.transport, groupName, 8)
	if err != nil {
		return err
	}
	dead, err := e.joinTopic(e.transport, deadTopic, groupName, 8)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	stop := make(chan struct{})
	defer close(stop)
	running.Go(func() { consume(m.messages, stop, chain) })
	running.Go(func() {
		consume(dead.messages, stop, func(msg *message.Message) ([]*message.Message, error) {
			md := msg.Metadata
			player.letter(md[event.MetaID], transport.Key(msg), md[event.MetaDeadClass], md[event.MetaDeadAttempts])
			return nil, nil
		})
	})
	var msgs []*message.Message
	for _, s := range Script() {
		msgs = append(msgs, newMessage(s.Key, s.Event))
	}
	if err := e.publish(msgs...); err != nil {
		return err
	}
	if err := e.within(player.Finished(), "the end of the failure script"); err != nil {
		return fmt.Errorf("%w; so far:\n%s", err, player.Trace())
	}
	e.pause() // whatever comes now is too much
	return sameTrace(player.Trace(), ScriptTrace())
}

// scriptChain is the standard chain: dead letter, retry, attempts, recover.
func scriptChain(player *Player, pub message.Publisher, deadTopic string, e *env) (message.HandlerFunc, error) {
	retry, err := middleware.Retry(ScriptRetry(e.Unit))
	if err != nil {
		return nil, err
	}
	h := middleware.Recover()(func(msg *message.Message) ([]*message.Message, error) {
		return nil, player.Handle(msg.Context(), msg.UUID)
	})
	h = retry(middleware.Attempts(middleware.NewMemoryAttempts())(h))
	return middleware.DeadLetter(middleware.PublishDeadLetters(pub, deadTopic))(h), nil
}

// consume gives each message to h on a goroutine of its own, as Watermill's router does.
func consume(messages <-chan *message.Message, stop <-chan struct{}, h message.HandlerFunc) {
	var handlers sync.WaitGroup
	defer handlers.Wait()
	for {
		select {
		case msg, open := <-messages:
			if !open {
				return
			}
			handlers.Go(func() {
				if _, err := h(msg); err != nil {
					msg.Nack()
					return
				}
				msg.Ack()
			})
		case <-stop:
			return
		}
	}
}

// sameTrace names the first line that differs.
func sameTrace(got, want string) error {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		line := func(lines []string) string {
			if i < len(lines) {
				return strings.TrimSpace(lines[i])
			}
			return "the end"
		}
		if line(g) != line(w) {
			return fmt.Errorf("the failure script's trace has %q in line %d, want %q; all of it:\n%s", line(g), i+1, line(w), got)
		}
	}
	return nil
}
