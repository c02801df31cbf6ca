package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/seambus/seambus/inbox"
)

func inboxCommand() *cobra.Command {
	var f connection
	var o inbox.Oblivion
	var since string
	group := &cobra.Command{
		Use: "inbox", Short: "Change what a group remembers", Args: usage(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error { return fmt.Errorf("%w: inbox what: forget?", errUsage) },
	}
	f.bind(group.PersistentFlags())
	forget := &cobra.Command{
		Use: "forget", Short: "Forget handled events, so that a replay of them takes effect again", Args: usage(cobra.NoArgs),
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if o.Since, err = parseTime(since, time.Now()); err != nil {
				return fmt.Errorf("%w: --since: %w", errUsage, err)
			}
			return f.withInbox(c.Context(), func(in *inbox.Inbox) error {
				n, err := in.Forget(c.Context(), o)
				if err != nil {
					return err
				}
				what := "forgotten"
				if o.DryRun {
					what = "would be forgotten"
				}
				c.Printf("%s: %d\n", what, n)
				return nil
			})
		},
	}
	forget.Flags().StringVar(&o.Group, "group", "", "the group; required")
	forget.Flags().StringVar(&o.Key, "key", "", "the events of this partition key")
	forget.Flags().StringVar(&since, "since", "", "the events handled at this time or later: RFC 3339, or a duration before now, as 2h")
	forget.Flags().StringVar(&o.By, "by", "", "who decides; required")
	forget.Flags().StringVar(&o.Why, "why", "", "why; required")
	forget.Flags().BoolVar(&o.DryRun, "dry-run", false, "change nothing and count")
	group.AddCommand(forget)
	return group
}
