// Command postern is the operator's command: it runs a development instance, sends deliveries, and answers what became of
// every event and object. It talks to PostgreSQL directly, so it works when the daemons do not.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/terminal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	ctx, release := app.OwnProcess(ctx)
	status := run(ctx, os.Args[1:], os.Stdin, terminal.Writer(os.Stdout), terminal.Writer(os.Stderr))
	release()
	stop()
	os.Exit(status)
}

// run executes one command line and returns its exit status.
func run(ctx context.Context, args []string, in io.Reader, out, errs io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	return report(root.ExecuteContext(ctx), errs)
}

// cli is what every command shares: the global flags.
type cli struct {
	config string
	dir    string
	output string
	// dirGiven: --dir is on the command line, so that it counts beside --config.
	dirGiven bool
}

func newRoot() *cobra.Command {
	c := &cli{}
	root := &cobra.Command{
		Use:   "postern",
		Short: "Take webhooks in, once, durably, and keep a mirror that only moves forward",
		Long: `Postern takes webhooks in: it proves the sender, stores each event exactly once, and keeps a mirror of the provider's
objects that only ever moves forward, whatever order the events arrive in.

Commands find the instance by --config FILE, else by POSTERN_DATABASE_URL, else by the dev instance in --dir DIR. With --config FILE
and --dir DIR together, sources and secrets are those of FILE, and addresses, and the database where FILE names none, those of the dev
instance in DIR. Where DIR is given and FILE or the variable leads to another database than the instance in DIR has, a command
refuses to work.
Lists take --object-type and --object-id (or --object) for the object; --type is the event's type in lists of events and the
object's in lists of objects.
Exit status: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 several match.`,
		Example: `  postern dev                          # everything in one process, in a terminal of its own
  postern send stripe invoice.paid     # a signed, realistic delivery
  postern events list
  postern objects show stripe invoice in_1Postern0Jan0001`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE:          group,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			c.dirGiven = cmd.Flags().Changed("dir")
			if c.output != "table" && c.output != "json" {
				return usagef("output %q is not known: write -o table or -o json", c.output)
			}
			return nil
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%v; see %s --help", err, cmd.CommandPath())
	})
	flags := root.PersistentFlags()
	flags.StringVar(&c.config, "config", "", "configuration `file` of the instance")
	flags.StringVar(&c.dir, "dir", ".postern", "`folder` of a dev instance")
	flags.StringVarP(&c.output, "output", "o", "table", "output `format`: table or json")
	must(root.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp)))
	root.AddCommand(newDevCommand(c), newServeCommand(c), newEventsCommand(c), newObjectsCommand(c), newOutcomesCommand(c), newRejectionsCommand(c), newConflictsCommand(c),
		newReplayCommand(c), newRetryCommand(c), newRebuildCommand(c), newReconcileCommand(c), newHintsCommand(c), newEffectsCommand(c), newNotifyCommand(c), newDriftCommand(c), newRunsCommand(c), newSchedulesCommand(c), newRetentionCommand(c), newRedactCommand(c), newTokenCommand(c), newAuditCommand(c), newVerifyCommand(c), newDoctorCommand(c), newStreamCommand(c), newSpoolCommand(c), newExportCommand(c), newImportCommand(c),
		newSendCommand(c), newProvidersCommand(c), newTopCommand(c), newInitCommand(), newConfigCommand(c), newMigrateCommand(c), newHealthCommand(c), newVersionCommand(c))
	return root
}

// group is the action of a command that only has others below it: help, or an error for a name it does not have.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	var known []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			known = append(known, sub.Name())
		}
	}
	return usagef("no command %q in %s; there are %s", args[0], cmd.CommandPath(), strings.Join(known, ", "))
}

// must is for mistakes in the building of commands, which every test shows.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
