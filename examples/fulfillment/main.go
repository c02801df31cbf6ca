// Fulfillment is the whole of Seambus in one program: a monolith that records order changes in its own database, a relay, a
// broker, and a fulfillment service that applies each change once and in order. See the README beside it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Exit statuses.
const (
	exitHeld        = 0
	exitBroken      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	stop, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel() // the first: finish and report
		<-signals
		os.Exit(exitInterrupted)
	}()
	os.Exit(run(stop, os.Args[1:], os.Stdout, os.Stderr))
}

// run carries the command out and returns its exit status. It takes nothing in any more once stop ends.
func run(stop context.Context, args []string, stdout io.Writer, stderr *os.File) int {
	o, err := parseOptions(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitHeld
	case errors.Is(err, errUsage):
		return exitUsage
	case err != nil:
		return fail(stderr, err)
	}
	ctx := context.WithoutCancel(stop)
	a, closeAll, err := assemble(ctx, o)
	if err != nil {
		return fail(stderr, err)
	}
	defer closeAll()
	src, err := a.source()
	if err != nil {
		return fail(stderr, err)
	}
	r, err := a.run(ctx, stop, src, newProgress(stderr))
	if closeErr := src.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fail(stderr, err)
	}
	if o.json {
		err = json.NewEncoder(stdout).Encode(r)
	} else {
		_, err = io.WriteString(stdout, r.String())
	}
	if err != nil {
		return fail(stderr, err)
	}
	if broken := r.Broken(); len(broken) > 0 {
		if o.json {
			fmt.Fprintln(stderr, "broken:", broken)
		}
		return exitBroken
	}
	return exitHeld
}

func fail(stderr io.Writer, err error) int {
	fmt.Fprintln(stderr, "fulfillment:", err)
	return exitUsage
}
