package main

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seambus/seambus/event"
	"github.com/seambus/seambus/inbox"
	"github.com/seambus/seambus/internal/dialect"
	"github.com/seambus/seambus/outbox"
)

func metricsCommand() *cobra.Command {
	var f connection
	var prefixes []string
	c := &cobra.Command{
		Use: "metrics", Short: "Print what Prometheus asks about outboxes and inbox, as text; it needs no relay", Args: usage(cobra.NoArgs),
		Long: `Asks the database and prints gauges in Prometheus's text format, for node_exporter's textfile collector or a scrape that runs a
command. docs/operations.md says what each figure means.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return f.withDB(c.Context(), func(db *sql.DB) error {
				text, err := metrics(c.Context(), db, prefixes)
				if err == nil {
					_, err = fmt.Fprint(c.OutOrStdout(), text)
				}
				return err
			})
		},
	}
	f.bind(c.Flags())
	c.Flags().StringSliceVar(&prefixes, "prefix", []string{dialect.DefaultPrefix}, "what the names of the outboxes' tables begin with")
	return c
}

// gauge is one figure of each outbox.
type gauge struct {
	name, help string
	of         func(outbox.Status) float64
}

func metrics(ctx context.Context, db *sql.DB, prefixes []string) (string, error) {
	status := make(map[string]outbox.Status)
	for _, p := range prefixes {
		op, err := outbox.NewOperator(db, outbox.WithTablePrefix(p))
		if err != nil {
			return "", err
		}
		if status[p], err = op.Status(ctx); err != nil {
			return "", err
		}
	}
	var b strings.Builder
	for _, g := range []gauge{
		{"seambus_outbox_oldest_unpublished_seconds", "Age of the oldest row that is pending or held; 0 if there is none.",
			func(s outbox.Status) float64 { return s.Oldest.Seconds() }},
		{"seambus_outbox_unpublished", "Rows that are pending or held.",
			func(s outbox.Status) float64 { return float64(s.Pending + s.Held) }},
		{"seambus_outbox_held", "Rows that wait for their next attempt or behind an earlier row of their key.",
			func(s outbox.Status) float64 { return float64(s.Held) }},
		{"seambus_outbox_failed", "Rows that were refused for good and await a decision.",
			func(s outbox.Status) float64 { return float64(s.Failed) }},
	} {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n", g.name, g.help, g.name)
		for _, p := range prefixes {
			fmt.Fprintf(&b, "%s{outbox=%q} %g\n", g.name, strings.TrimSuffix(p, "_"), g.of(status[p]))
		}
	}
	err := inboxMetrics(ctx, db, &b)
	return b.String(), err
}

// inboxMetrics adds the inbox's figures, if there is an inbox.
func inboxMetrics(ctx context.Context, db *sql.DB, b *strings.Builder) error {
	d, err := dialect.For(db)
	if err != nil {
		return err
	}
	if v, err := d.Applied(ctx, db, dialect.SetInbox, dialect.DefaultPrefix); err != nil || v == 0 {
		return err
	}
	in, err := inbox.New(db)
	if err != nil {
		return err
	}
	for _, g := range []struct {
		name, help string
		filter     inbox.Filter
	}{
		{"seambus_inbox_dead_letters", "Dead letters that await a decision.", inbox.Filter{State: inbox.StateDead}},
		{"seambus_inbox_contract_breaks", "Of these, events that break their contract.", inbox.Filter{State: inbox.StateDead, Class: event.ClassContract}},
		{"seambus_inbox_held", "Events that wait behind a dead letter of their key.", inbox.Filter{State: inbox.StateHeld}},
	} {
		n, err := in.CountParked(ctx, g.filter)
		if err != nil {
			return err
		}
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s gauge\n%s %d\n", g.name, g.help, g.name, g.name, n)
	}
	return nil
}
