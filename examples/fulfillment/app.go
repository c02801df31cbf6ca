package main

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/seambus/seambus/examples/fulfillment/chaos"
	"github.com/seambus/seambus/examples/fulfillment/contract"
	"github.com/seambus/seambus/examples/fulfillment/monolith"
	"github.com/seambus/seambus/examples/fulfillment/service"
	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/memory"
)

// app is the two sides and the broker between them.
type app struct {
	options  options
	places   places
	broker   *memory.Transport
	faults   *chaos.Chaos // nil without chaos
	clock    *clock
	db       monolith.DB
	monolith *monolith.Monolith
	service  *service.Service

	elsewhere int64 `wire:"-"` // rows recorded here that others published, or that were known before
}

func newBroker() (*memory.Transport, func()) {
	broker := memory.New()
	return broker, func() { _ = broker.Close() }
}

func newChaos(o options, broker *memory.Transport) *chaos.Chaos {
	if !o.chaos {
		return nil
	}
	return chaos.New(o.seed, broker, contract.Orders.Name(), service.Group)
}

func newMonolith(ctx context.Context, db monolith.DB, broker *memory.Transport, faults *chaos.Chaos) (*monolith.Monolith, error) {
	var t transport.Transport = broker
	if faults != nil {
		t = faults.Around(broker)
	}
	return monolith.New(ctx, db, t)
}

func newService(
	ctx context.Context, db service.DB, broker *memory.Transport, faults *chaos.Chaos, c *clock,
) (*service.Service, error) {
	watch := c.watch
	if faults != nil {
		watch = func(next message.HandlerFunc) message.HandlerFunc { return faults.Consumer(c.watch(next)) }
	}
	return service.New(ctx, db, broker, watch)
}

// sides runs both buses and the monolith's relay. Stop ends them, the producer's side first.
type sides struct {
	cancel context.CancelFunc
	done   []<-chan error
}

func (a *app) start(ctx context.Context) (*sides, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &sides{cancel: cancel}
	for _, b := range []interface {
		Run(ctx context.Context) error
		Ready() <-chan struct{}
	}{a.service.Bus(), a.monolith.Bus()} {
		done := s.run(func() error { return b.Run(ctx) })
		select {
		case <-b.Ready():
		case err := <-done:
			cancel()
			return nil, err
		}
	}
	s.run(func() error { return a.relay(ctx) })
	return s, nil
}

func (s *sides) run(fn func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	s.done = append(s.done, done)
	return done
}

func (s *sides) stop() error {
	s.cancel()
	errs := make([]error, len(s.done))
	for i, done := range s.done {
		errs[i] = <-done
	}
	return errors.Join(errs...)
}

// relay runs the monolith's relay, and another one when that is killed.
func (a *app) relay(ctx context.Context) error {
	for ctx.Err() == nil {
		life, kill := context.WithCancel(ctx)
		if a.faults != nil {
			a.faults.Relay(kill)
		}
		err := a.monolith.Outbox().Run(life)
		kill()
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}
