package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
)

// options are the command line.
type options struct {
	input  string
	json   bool
	chaos  bool
	seed   uint64
	orders int
	keep   string
	db     string
}

const usage = `Watch orders leave a monolith's database and be applied by a separate service.

  go run ./examples/fulfillment                        2,000 generated orders, with chaos
  go run ./examples/fulfillment --input FILE --chaos   a stream of your own, .jsonl, .jsonl.gz or -

The exit status is 0 if every promise held, 1 if one broke, 2 if the command could not be carried out.

`

// errUsage holds for a command line that the flag package has already explained.
var errUsage = errors.New("usage")

func parseOptions(args []string, stderr io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("fulfillment", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() {
		fmt.Fprint(stderr, usage)
		fs.PrintDefaults()
	}
	fs.StringVar(&o.input, "input", "", "replay `FILE`, one JSON object a line: {eventId, orderId, status, version, occurredAt}")
	fs.BoolVar(&o.json, "json", false, "print the report as one JSON object")
	fs.BoolVar(&o.chaos, "chaos", true, "inject faults; with --input only if asked for")
	fs.Uint64Var(&o.seed, "seed", 1, "what generated orders and faults are drawn from")
	fs.IntVar(&o.orders, "orders", 2000, "how many orders to generate")
	fs.StringVar(&o.keep, "keep", "", "keep the databases in `DIR` and go on with what is there")
	fs.StringVar(&o.db, "db", "", "the database `URL`: sqlite://DIR, postgres://… or mysql://user:password@host:port/; on a server two schemas, or databases, "+
		"are made, and dropped at the end unless --keep names them: seambus_KEEP_monolith and _service")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return o, err
		}
		return o, errUsage
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: a file is given by --input FILE", fs.Arg(0))
	}
	if o.orders < 1 {
		return o, fmt.Errorf("--orders is %d, want at least 1", o.orders)
	}
	asked := false
	fs.Visit(func(f *flag.Flag) { asked = asked || f.Name == "chaos" })
	if o.input != "" && !asked {
		o.chaos = false
	}
	return o, nil
}
