// Command seambus is the operator's tool: it makes and inspects the tables of outbox and inbox, tells how
// outboxes stand, decides about their rows and about dead letters, and proves the promises by drills.
//
// Exit codes: 0 done; 1 it failed, and standard error says why; 2 wrong usage; 3 `migrate status` found steps that are not
// applied; 4 no row of the outbox is what was asked for; 5 a drill found a
// promise broken.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	_ "github.com/go-sql-driver/mysql" // registers the driver mysql
	_ "github.com/jackc/pgx/v5/stdlib" // registers the driver pgx
	"github.com/spf13/cobra"
	_ "modernc.org/sqlite" // registers the driver sqlite

	"github.com/seambus/seambus/outbox"
)

// Exit codes, as the package comment documents them.
const (
	exitOK      = 0
	exitFailed  = 1
	exitUsage   = 2
	exitPending = 3
	exitNoRow   = 4
	exitBroken  = 5
)

var (
	errUsage   = errors.New("wrong usage")
	errPending = errors.New("migrations are not applied: run `seambus migrate up`")
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes one command line and returns its exit code.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	root := &cobra.Command{
		Use: "seambus", Short: "Operate seambus outboxes and inboxes", SilenceUsage: true, SilenceErrors: true,
		Args: cobra.NoArgs,
	}
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errOut)
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w", errUsage, err) })
	root.AddCommand(migrateCommand(), deadLetterCommand(), inboxCommand(), outboxCommand(), drillCommand(), metricsCommand())
	err := root.ExecuteContext(ctx)
	if err != nil {
		root.PrintErrln("seambus:", err)
	}
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errPending):
		return exitPending
	case errors.Is(err, outbox.ErrNoRow):
		return exitNoRow
	case errors.Is(err, errBroken):
		return exitBroken
	case errors.Is(err, errUsage):
		return exitUsage
	default:
		return exitFailed
	}
}

// usage marks an argument check's error, so that it has the exit code of wrong usage.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if err := check(c, args); err != nil {
			return fmt.Errorf("%w: %w", errUsage, err)
		}
		return nil
	}
}

// sayf writes for people. A write that fails is seen, where there is more to do, when the rest is written.
func sayf(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format, args...) }
