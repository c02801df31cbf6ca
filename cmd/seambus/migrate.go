package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seambus/seambus/internal/dialect"
)

type migrateFlags struct {
	connection
	prefix string
	sets   []string
	asJSON bool
}

func migrateCommand() *cobra.Command {
	f := new(migrateFlags)
	group := &cobra.Command{
		Use: "migrate", Short: "Make, inspect or print the tables", Args: usage(cobra.NoArgs),
		RunE: func(*cobra.Command, []string) error {
			return fmt.Errorf("%w: migrate what: up, status or print?", errUsage)
		},
	}
	flags := group.PersistentFlags()
	f.bind(flags)
	flags.StringVar(&f.prefix, "prefix", dialect.DefaultPrefix, "what the names of the tables begin with")
	flags.StringSliceVar(&f.sets, "set", nil, "outbox, inbox (default: all that the dialect has)")
	add := func(use, short string, run func(c *cobra.Command, d dialect.Dialect) error) {
		group.AddCommand(&cobra.Command{Use: use, Short: short, Args: usage(cobra.NoArgs), RunE: func(c *cobra.Command, _ []string) error {
			d, err := f.check()
			if err != nil {
				return err
			}
			return run(c, d)
		}})
	}
	add("up", "Apply the steps that are missing; harmless if there are none, and safe to run from several places at once", f.up)
	add("status", "Show which steps are applied; exit code 3 if some are not", f.status)
	add("print", "Print the SQL of all steps, for a migration tool of your own", f.print)
	for _, c := range group.Commands() {
		if c.Name() == "status" {
			c.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
		}
	}
	return group
}

// check resolves the flags and reports everything that is wrong with them.
func (f *migrateFlags) check() (dialect.Dialect, error) {
	d, err := dialect.Named(f.dialect)
	if err != nil {
		err = fmt.Errorf("--dialect: %w", err)
	}
	if prefixErr := dialect.CheckPrefix(f.prefix); prefixErr != nil {
		err = errors.Join(err, fmt.Errorf("--prefix: %w", prefixErr))
	}
	if err != nil {
		return d, fmt.Errorf("%w: %w", errUsage, err)
	}
	all, err := d.Sets()
	if err != nil {
		return d, err
	}
	if f.sets == nil {
		f.sets = all
	}
	for _, set := range f.sets {
		if !slices.Contains(all, set) {
			return d, fmt.Errorf("%w: --set: %.40q is none of %v, which is what there is for %s", errUsage, set, all, d.Name())
		}
	}
	return d, nil
}

// state is one set's line of `migrate status`.
type state struct {
	Set     string   `json:"set"`
	Applied int      `json:"applied"`
	Latest  int      `json:"latest"`
	Pending []string `json:"pending"`
}

func (f *migrateFlags) states(ctx context.Context, d dialect.Dialect, db *sql.DB) ([]state, error) {
	states := make([]state, 0, len(f.sets))
	for _, set := range f.sets {
		steps, err := d.Migrations(set, f.prefix)
		if err != nil {
			return nil, err
		}
		applied, err := d.Applied(ctx, db, set, f.prefix)
		if err != nil {
			return nil, err
		}
		s := state{Set: set, Applied: applied, Latest: len(steps), Pending: []string{}}
		for _, step := range steps[min(applied, len(steps)):] {
			s.Pending = append(s.Pending, step.Name)
		}
		states = append(states, s)
	}
	return states, nil
}

func (f *migrateFlags) up(c *cobra.Command, d dialect.Dialect) (err error) {
	db, err := f.open(c.Context(), d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	before, err := f.states(c.Context(), d, db)
	if err != nil {
		return err
	}
	for _, s := range before {
		if err := d.MigrateAs(c.Context(), db, s.Set, f.prefix); err != nil {
			return err
		}
		if len(s.Pending) == 0 {
			c.Printf("%s: up to date at version %d\n", s.Set, s.Applied)
		}
		for _, name := range s.Pending {
			c.Printf("%s: applied %s\n", s.Set, name)
		}
	}
	return nil
}

func (f *migrateFlags) status(c *cobra.Command, d dialect.Dialect) (err error) {
	db, err := f.open(c.Context(), d)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	states, err := f.states(c.Context(), d, db)
	if err != nil {
		return err
	}
	if err := f.show(c.OutOrStdout(), states); err != nil {
		return err
	}
	if slices.ContainsFunc(states, func(s state) bool { return len(s.Pending) > 0 }) {
		return errPending
	}
	return nil
}

func (f *migrateFlags) show(out io.Writer, states []state) error {
	if f.asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(states)
	}
	var b strings.Builder
	for _, s := range states {
		fmt.Fprintf(&b, "%s: version %d of %d", s.Set, s.Applied, s.Latest)
		switch {
		case len(s.Pending) > 0:
			fmt.Fprintf(&b, ", missing %v", s.Pending)
		case s.Applied > s.Latest:
			b.WriteString(", newer than this program, which works with it")
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func (f *migrateFlags) print(c *cobra.Command, d dialect.Dialect) error {
	for _, set := range f.sets {
		steps, err := d.Migrations(set, f.prefix)
		if err != nil {
			return err
		}
		for _, step := range steps {
			c.Printf("-- %s %s\n%s\n", set, step.Name, step.SQL)
		}
	}
	return nil
}
