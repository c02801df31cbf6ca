package main

import (
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/outbox"
)

// outboxFlags are the flags of the outbox commands.
type outboxFlags struct {
	connection
	prefixes     []string
	filter       outbox.Filter
	since, until string
	asJSON       bool
	order        outbox.Order
	retention    time.Duration
}

func outboxCommand() *cobra.Command {
	f := new(outboxFlags)
	group := &cobra.Command{
		Use: "outbox", Short: "See how outboxes stand, and decide about their rows", Args: usage(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("%w: outbox what: status, list, show, retry, discard, replay, sweep or audit?", errUsage)
		},
	}
	flags := group.PersistentFlags()
	f.bind(flags)
	flags.StringSliceVar(&f.prefixes, "prefix", []string{dialect.DefaultPrefix}, "what the names of the outbox's tables begin with; status takes several")
	flags.BoolVar(&f.asJSON, "json", false, "print JSON")
	add := func(name, short string, run func(*cobra.Command, *outbox.Operator) error) *cobra.Command {
		c := &cobra.Command{Use: name, Short: short, Args: usage(cobra.NoArgs)}
		c.RunE = func(c *cobra.Command, _ []string) error { return f.onOne(c, run) }
		group.AddCommand(c)
		return c
	}
	group.AddCommand(&cobra.Command{
		Use: "status", Short: "Show how many rows wait and for how long; it needs no relay", Args: usage(cobra.NoArgs), RunE: f.status,
	})
	list := add("list", "List rows, oldest first", f.list)
	list.Flags().StringVar(&f.filter.State, "state", "", "only rows that are pending, held, failed, published or discarded")
	list.Flags().IntVar(&f.filter.Limit, "limit", 100, "at most so many")
	show := add("show", "Show everything about one event, but for the payload", f.show)
	show.Flags().BoolVar(&f.filter.Payload, "payload", false, "show the payload, too")
	retry := add("retry", "Send failed rows again, and held ones without waiting for their next attempt; each key in its order", f.retry)
	discard := add("discard", "Give failed rows up for good, and let what is held behind them go on", f.discard)
	discard.Flags().BoolVar(&f.order.Erase, "payload", false, "erase payload and metadata; the audit stays")
	replay := add("replay", "Send published rows again, each key in its order; consumers drop what they remember", f.replay)
	sweep := add("sweep", "Delete published and discarded rows older than the retention now", f.sweep)
	sweep.Flags().DurationVar(&f.retention, "retention", 7*24*time.Hour, "how old rows must be")
	audit := add("audit", "List what operators did, oldest first", f.audit)
	audit.Flags().IntVar(&f.filter.Limit, "limit", 100, "at most so many")
	audit.Flags().Int64Var(&f.filter.After, "after", 0, "only after this sequence, to read on where a list ended")
	for _, c := range []*cobra.Command{list, show, retry, discard, replay} {
		f.bindFilter(c)
	}
	for _, c := range []*cobra.Command{retry, discard, replay, sweep} {
		c.Flags().StringVar(&f.order.By, "by", "", "who decides; required")
		c.Flags().StringVar(&f.order.Why, "why", "", "why; required")
		c.Flags().BoolVar(&f.order.DryRun, "dry-run", false, "change nothing and count")
	}
	for _, c := range []*cobra.Command{retry, discard, replay} {
		c.Flags().BoolVar(&f.order.All, "all", false, "all rows, where nothing else chooses")
	}
	return group
}

func (f *outboxFlags) bindFilter(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&f.filter.Topic, "topic", "", "only of this topic")
	flags.StringVar(&f.filter.Type, "type", "", "only events of this type")
	flags.StringVar(&f.filter.Key, "key", "", "only of this partition key")
	flags.StringVar(&f.filter.ID, "id", "", "only the event of this id")
	flags.StringVar(&f.since, "since", "", "only recorded at this time or later: RFC 3339, or a duration before now, as 2h")
	flags.StringVar(&f.until, "until", "", "only recorded before this time")
	flags.Int64Var(&f.filter.After, "after", 0, "only after this sequence, to read on where a list ended")
}

// check reads the flags that are more than text, and reports everything that is wrong.
func (f *outboxFlags) check() error {
	now := time.Now()
	var errs []error
	var err error
	if f.filter.Since, err = parseTime(f.since, now); err != nil {
		errs = append(errs, fmt.Errorf("--since: %w", err))
	}
	if f.filter.Until, err = parseTime(f.until, now); err != nil {
		errs = append(errs, fmt.Errorf("--until: %w", err))
	}
	if f.filter.Limit < 0 || f.filter.Limit > 10_000 {
		errs = append(errs, fmt.Errorf("--limit is %d, want 0 to 10000", f.filter.Limit))
	}
	if f.filter.State != "" {
		if _, err := dialect.ParseState(f.filter.State); err != nil {
			errs = append(errs, fmt.Errorf("--state: %w", err))
		}
	}
	for _, p := range f.prefixes {
		if err := dialect.CheckPrefix(p); err != nil {
			errs = append(errs, fmt.Errorf("--prefix: %w", err))
		}
	}
	if f.retention < 0 {
		errs = append(errs, fmt.Errorf("--retention is %v, want zero or more", f.retention))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	return nil
}

// onEach runs fn on every outbox that is named.
func (f *outboxFlags) onEach(c *cobra.Command, fn func(prefix string, op *outbox.Operator) error) error {
	if err := f.check(); err != nil {
		return err
	}
	return f.withDB(c.Context(), func(db *sql.DB) error {
		for _, p := range f.prefixes {
			op, err := outbox.NewOperator(db, outbox.WithTablePrefix(p), outbox.WithRetention(f.retention))
			if err == nil {
				err = fn(p, op)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

func (f *outboxFlags) onOne(c *cobra.Command, fn func(*cobra.Command, *outbox.Operator) error) error {
	if len(f.prefixes) != 1 {
		return fmt.Errorf("%w: --prefix names %d outboxes, want one", errUsage, len(f.prefixes))
	}
	return f.onEach(c, func(_ string, op *outbox.Operator) error { return fn(c, op) })
}

// standing is what status prints.
type standing struct {
	Prefix                   string  `json:"prefix"`
	Pending                  int64   `json:"pending"`
	Held                     int64   `json:"held"`
	Failed                   int64   `json:"failed"`
	Unpublished              int64   `json:"unpublished"`
	OldestUnpublishedSeconds float64 `json:"oldest_unpublished_seconds"`
}

func (f *outboxFlags) status(c *cobra.Command, _ []string) error {
	var all []standing
	err := f.onEach(c, func(prefix string, op *outbox.Operator) error {
		s, err := op.Status(c.Context())
		all = append(all, standing{
			Prefix: prefix, Pending: s.Pending, Held: s.Held, Failed: s.Failed, Unpublished: s.Pending + s.Held,
			OldestUnpublishedSeconds: s.Oldest.Seconds(),
		})
		return err
	})
	if err != nil {
		return err
	}
	if f.asJSON {
		return printJSON(c.OutOrStdout(), all)
	}
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
	sayf(w, "OUTBOX\tPENDING\tHELD\tFAILED\tOLDEST UNPUBLISHED\n")
	for _, s := range all {
		sayf(w, "%s\t%d\t%d\t%d\t%.1f s\n", s.Prefix, s.Pending, s.Held, s.Failed, s.OldestUnpublishedSeconds)
	}
	return w.Flush()
}

// outboxRow is what list and show print.
type outboxRow struct {
	Sequence      int64             `json:"sequence"`
	State         string            `json:"state"`
	Topic         string            `json:"topic"`
	Key           string            `json:"key"`
	Type          string            `json:"type"`
	Source        string            `json:"source"`
	ID            string            `json:"id"`
	SchemaVersion string            `json:"schemaVersion,omitempty"`
	ContentType   string            `json:"contentType,omitempty"`
	Version       *uint64           `json:"version,omitempty"`
	Generation    int               `json:"generation"`
	Attempts      int               `json:"attempts"`
	Class         string            `json:"class,omitempty"`
	Error         string            `json:"error,omitempty"`
	Recorded      time.Time         `json:"recorded"`
	NotBefore     time.Time         `json:"notBefore,omitzero"`
	LastAttempt   time.Time         `json:"lastAttempt,omitzero"`
	Published     time.Time         `json:"published,omitzero"`
	Metadata      map[string]string `json:"metadata,omitempty"`
	Payload       *[]byte           `json:"payload,omitempty"` // base64
}

func outboxRowOf(r *outbox.Row) outboxRow {
	o := outboxRow{
		Sequence: r.Sequence, State: r.State, Topic: r.Topic, Key: r.Key, Type: r.Type, Source: r.Source, ID: r.ID,
		SchemaVersion: r.SchemaVersion, ContentType: r.ContentType, Generation: r.Generation, Attempts: r.Attempts, Class: r.Class,
		Error: r.Error, Recorded: r.Recorded, NotBefore: r.NotBefore, LastAttempt: r.LastAttempt, Published: r.Published,
	}
	if r.HasVersion {
		o.Version = &r.Version
	}
	return o
}

func (f *outboxFlags) list(c *cobra.Command, op *outbox.Operator) error {
	found, err := op.Rows(c.Context(), f.filter)
	if err != nil {
		return err
	}
	rows := make([]outboxRow, len(found))
	for i := range found {
		rows[i] = outboxRowOf(&found[i])
	}
	if f.asJSON {
		return printJSON(c.OutOrStdout(), rows)
	}
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
	sayf(w, "SEQ\tSTATE\tTOPIC\tKEY\tTYPE\tID\tRECORDED\tATTEMPTS\tERROR\n")
	for _, r := range rows {
		sayf(w, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", r.Sequence, r.State, r.Topic, r.Key, r.Type, r.ID,
			r.Recorded.Format(time.RFC3339), r.Attempts, strings.TrimSpace(fmt.Sprintf("%s %.60s", r.Class, r.Error)))
	}
	return w.Flush()
}

func (f *outboxFlags) show(c *cobra.Command, op *outbox.Operator) error {
	if f.filter.ID == "" {
		return fmt.Errorf("%w: --id is required: which event?", errUsage)
	}
	found, err := op.Rows(c.Context(), f.filter)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("%w: id %q", outbox.ErrNoRow, f.filter.ID)
	}
	row := outboxRowOf(&found[0])
	row.Metadata = found[0].Metadata
	if f.filter.Payload {
		row.Payload = &found[0].Payload
	}
	return printJSON(c.OutOrStdout(), row)
}

func (f *outboxFlags) retry(c *cobra.Command, op *outbox.Operator) error {
	return f.decide(c, func(o outbox.Order) (int64, error) { return op.Retry(c.Context(), o) })
}

func (f *outboxFlags) discard(c *cobra.Command, op *outbox.Operator) error {
	return f.decide(c, func(o outbox.Order) (int64, error) { return op.Discard(c.Context(), o) })
}

func (f *outboxFlags) replay(c *cobra.Command, op *outbox.Operator) error {
	return f.decide(c, func(o outbox.Order) (int64, error) { return op.Replay(c.Context(), o) })
}

func (f *outboxFlags) sweep(c *cobra.Command, op *outbox.Operator) error {
	return f.decide(c, func(o outbox.Order) (int64, error) { return op.Sweep(c.Context(), o) })
}

func (f *outboxFlags) decide(c *cobra.Command, act func(outbox.Order) (int64, error)) error {
	if f.order.By == "" || f.order.Why == "" {
		return fmt.Errorf("%w: --by and --why are required, for the audit", errUsage)
	}
	chosen := f.filter
	chosen.Limit = 0
	if chosen == (outbox.Filter{}) && !f.order.All && c.Name() != "sweep" {
		return fmt.Errorf("%w: choose rows, or give --all", errUsage)
	}
	f.order.Filter = f.filter
	n, err := act(f.order)
	if err != nil {
		return err
	}
	if f.asJSON {
		return printJSON(c.OutOrStdout(), map[string]any{"rows": n, "dry_run": f.order.DryRun})
	}
	what := "done"
	if f.order.DryRun {
		what = "would be done"
	}
	sayf(c.OutOrStdout(), "%s: %d\n", what, n)
	return nil
}

func (f *outboxFlags) audit(c *cobra.Command, op *outbox.Operator) error {
	notes, err := op.Audit(c.Context(), f.filter.After, f.filter.Limit)
	if err != nil {
		return err
	}
	if f.asJSON {
		return printJSON(c.OutOrStdout(), notes)
	}
	w := tabwriter.NewWriter(c.OutOrStdout(), 0, 4, 2, ' ', 0)
	sayf(w, "SEQ\tTIME\tBY\tWHY\tACTION\tROWS\tID\tCHOSEN\n")
	for _, n := range notes {
		sayf(w, "%d\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", n.Sequence, n.Time.Format(time.RFC3339), n.By, n.Why, n.Action, n.Rows, n.ID, n.Chosen)
	}
	return w.Flush()
}
