//go:build wireinject

package main

import (
	"context"

	"github.com/google/wire"
)

// assemble makes both sides from the command line.
func assemble(ctx context.Context, o options) (*app, func(), error) {
	wire.Build(newPlaces, newMonolithDB, newServiceDB, newBroker, newChaos, newClock, newMonolith, newService, wire.Struct(new(app), "*"))
	return nil, nil, nil
}
