package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
)

// letterFlags are the flags of the deadletter commands.
type letterFlags struct {
	connection
	filter       inbox.Filter
	since, until string
	all          bool
	asJSON       bool
	payload      bool
	order        inbox.Order
	rate         float64
}

func deadLetterCommand() *cobra.Command {
	f := new(letterFlags)
	group := &cobra.Command{
		Use: "deadletter", Short: "List dead letters, and decide about them", Args: usage(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("%w: deadletter what: list, show, redrive or discard?", errUsage)
		},
	}
	f.bind(group.PersistentFlags())
	flags := group.PersistentFlags()
	flags.StringVar(&f.filter.Group, "group", "", "only of this group")
	flags.StringVar(&f.filter.Topic, "topic", "", "only of this topic")
	flags.StringVar(&f.filter.Type, "type", "", "only events of this type")
	flags.StringVar(&f.filter.Key, "key", "", "only of this partition key")
	flags.StringVar(&f.filter.Class, "class", "", "only of this error class: contract, permanent, transient, timeout, panic")
	flags.StringVar(&f.filter.ID, "id", "", "only the event of this id")
	flags.StringVar(&f.since, "since", "", "only parked at this time or later: RFC 3339, or a duration before now, as 2h")
	flags.StringVar(&f.until, "until", "", "only parked before this time")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")

	list := &cobra.Command{Use: "list", Short: "List what is parked, oldest first", Args: usage(cobra.NoArgs), RunE: f.list}
	list.Flags().BoolVar(&f.all, "all", false, "also what is held, ready or discarded")
	list.Flags().IntVar(&f.filter.Limit, "limit", 100, "at most so many")
	list.Flags().Int64Var(&f.filter.After, "after", 0, "only after this sequence, to read on where a list ended")
	show := &cobra.Command{Use: "show", Short: "Show everything about one event: reason, every attempt, metadata", Args: usage(cobra.NoArgs), RunE: f.show}
	show.Flags().BoolVar(&f.payload, "payload", false, "show the payload, too")
	redrive := &cobra.Command{
		Use: "redrive", Short: "Have dead letters handled again, in the order of their keys, by this group alone", Args: usage(cobra.NoArgs),
		RunE: f.redrive,
	}
	redrive.Flags().BoolVar(&f.order.OutOfOrder, "out-of-order", false, "also letters that a later event of their key has overtaken")
	discard := &cobra.Command{Use: "discard", Short: "Give dead letters up for good", Args: usage(cobra.NoArgs), RunE: f.discard}
	discard.Flags().BoolVar(&f.order.Erase, "payload", false, "erase payload and metadata; the audit stays")
	for _, c := range []*cobra.Command{redrive, discard} {
		c.Flags().StringVar(&f.order.By, "by", "", "who decides; required")
		c.Flags().StringVar(&f.order.Why, "why", "", "why; required")
		c.Flags().BoolVar(&f.order.DryRun, "dry-run", false, "change nothing; count, and tell what the group would drop")
		c.Flags().Float64Var(&f.rate, "rate", 0, "at most so many a second; 0 is no limit")
	}
	group.AddCommand(list, show, redrive, discard)
	return group
}

// check reads the flags that are more than text, and reports everything that is wrong.
func (f *letterFlags) check() error {
	var errs []error
	now := time.Now()
	for _, t := range []struct {
		name, text string
		into       *time.Time
	}{{"--since", f.since, &f.filter.Since}, {"--until", f.until, &f.filter.Until}} {
		at, err := parseTime(t.text, now)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.name, err))
		}
		*t.into = at
	}
	if f.rate < 0 || f.rate > 1e6 {
		errs = append(errs, fmt.Errorf("--rate is %v, want 0 to 1000000", f.rate))
	} else if f.rate > 0 {
		f.order.Pause = time.Duration(float64(time.Second) / f.rate)
	}
	if f.filter.Limit < 0 || f.filter.Limit > 10_000 {
		errs = append(errs, fmt.Errorf("--limit is %d, want 0 to 10000", f.filter.Limit))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	return nil
}

// parseTime reads a time, or how long before now it is.
func parseTime(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil {
		return now.Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("%.40q is neither RFC 3339 nor a duration, as 2026-01-31T08:00:00Z or 2h", text)
	}
	return at, nil
}

// letter is what list and show print.
type letter struct {
	Sequence     int64             `json:"sequence"`
	State        string            `json:"state"`
	Holds        bool              `json:"holds"`
	Group        string            `json:"group"`
	Topic        string            `json:"topic"`
	Key          string            `json:"key"`
	Type         string            `json:"type"`
	Source       string            `json:"source"`
	ID           string            `json:"id"`
	Handler      string            `json:"handler"`
	Class        string            `json:"class"`
	Reason       string            `json:"reason"`
	Attempts     int               `json:"attempts"`
	FirstAttempt *time.Time        `json:"firstAttempt,omitempty"`
	Time         time.Time         `json:"time"`
	History      []event.Failure   `json:"history,omitempty"`
	Metadata     map[string]string `json:"metadata,omitempty"`
	Payload      *[]byte           `json:"payload,omitempty"` // base64
}

func letterOf(p *inbox.Parked) letter {
	l := letter{
		Sequence: p.Sequence, State: p.State, Holds: p.Holds, Group: p.Group, Topic: p.Topic, Key: p.Key, Type: p.Type, Source: p.Source,
		ID: p.ID, Handler: p.Handler, Class: p.Class, Reason: p.Reason, Attempts: p.Attempts, Time: p.Time,
	}
	if !p.FirstAttempt.IsZero() {
		l.FirstAttempt = &p.FirstAttempt
	}
	return l
}

func (f *letterFlags) list(c *cobra.Command, _ []string) error {
	if err := f.check(); err != nil {
		return err
	}
	if !f.all {
		f.filter.State = inbox.StateDead
	}
	return f.withInbox(c.Context(), func(in *inbox.Inbox) error {
		parked, err := in.Parked(c.Context(), f.filter)
		if err != nil {
			return err
		}
		letters := make([]letter, len(parked))
		for i := range parked {
			letters[i] = letterOf(&parked[i])
		}
		if f.asJSON {
			return printJSON(c.OutOrStdout(), letters)
		}
		return printTable(c.OutOrStdout(), letters)
	})
}

func printTable(out io.Writer, letters []letter) error {
	var b strings.Builder
	b.WriteString("SEQ\tSTATE\tGROUP\tTOPIC\tKEY\tTYPE\tID\tCLASS\tATTEMPTS\tTIME\tREASON\n")
	for i := range letters {
		l := &letters[i]
		state := l.State
		if l.Holds {
			state += ", holds"
		}
		b.WriteString(strings.Join([]string{
			strconv.FormatInt(l.Sequence, 10), state, l.Group, l.Topic, l.Key, l.Type, l.ID, l.Class, strconv.Itoa(l.Attempts),
			l.Time.Format(time.RFC3339), fmt.Sprintf("%.60s", l.Reason),
		}, "\t") + "\n")
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	_, err := io.WriteString(w, b.String())
	return errors.Join(err, w.Flush())
}

func (f *letterFlags) show(c *cobra.Command, _ []string) error {
	if err := f.check(); err != nil {
		return err
	}
	if f.filter.ID == "" {
		return fmt.Errorf("%w: --id is required: which event?", errUsage)
	}
	return f.withInbox(c.Context(), func(in *inbox.Inbox) error {
		parked, err := in.Parked(c.Context(), f.filter)
		if err != nil {
			return err
		}
		if len(parked) == 0 {
			return fmt.Errorf("%w: id %q", inbox.ErrNotParked, f.filter.ID)
		}
		letters := make([]letter, len(parked))
		for i := range parked {
			letters[i] = letterOf(&parked[i])
			letters[i].History, letters[i].Metadata = parked[i].History, parked[i].Message.Metadata
			if f.payload {
				letters[i].Payload = (*[]byte)(&parked[i].Message.Payload)
			}
		}
		return printJSON(c.OutOrStdout(), letters)
	})
}

func (f *letterFlags) redrive(c *cobra.Command, _ []string) error {
	return f.decide(c, func(in *inbox.Inbox) (inbox.Outcome, error) { return in.Redrive(c.Context(), f.order) })
}

func (f *letterFlags) discard(c *cobra.Command, _ []string) error {
	return f.decide(c, func(in *inbox.Inbox) (inbox.Outcome, error) { return in.Discard(c.Context(), f.order) })
}

func (f *letterFlags) decide(c *cobra.Command, act func(*inbox.Inbox) (inbox.Outcome, error)) error {
	if err := f.check(); err != nil {
		return err
	}
	if f.order.By == "" || f.order.Why == "" {
		return fmt.Errorf("%w: --by and --why are required, for the audit", errUsage)
	}
	f.order.Filter = f.filter
	return f.withInbox(c.Context(), func(in *inbox.Inbox) error {
		out, err := act(in)
		if f.asJSON {
			return errors.Join(printJSON(c.OutOrStdout(), out), err)
		}
		what := "done"
		if f.order.DryRun {
			what = "would be done"
		}
		c.Printf("%s: %d; of these the group drops %d as duplicates and %d as stale\n", what, out.Done, out.Duplicates, out.Stale)
		for _, r := range out.Refused {
			c.Printf("refused: %s (key %q): %s\n", r.ID, r.Key, r.Reason)
		}
		return err
	})
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
