// Command postern is the operator's command line. It runs a development instance, sends test
// deliveries, and lists and changes what is stored. It connects to PostgreSQL directly, so it also
// works while the daemons do not run.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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
	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errs)
	return report(root.ExecuteContext(ctx), errs)
}

// cli holds the global flags, which all commands share.
type cli struct {
	config string
	dir    string
	output string
	// dirGiven is true if --dir is on the command line, so that it counts in addition to --config.
	dirGiven bool
}

func newRootCommand() *cobra.Command {
	c := &cli{}
	root := &cobra.Command{
		Use:   "postern",
		Short: "Receive webhooks reliably and keep the latest state of every object",
		Long: `Postern receives webhooks. It verifies the sender, stores each event exactly once, and
keeps a mirror of the provider's objects. A late event never overwrites a newer state.

Commands find the instance by --config FILE, else by POSTERN_DATABASE_URL, else by the dev instance
in --dir DIR. With both --config FILE and --dir DIR, sources and secrets are from FILE and addresses
from the dev instance in DIR. The database is from FILE, or from the dev instance if FILE names
none. If DIR is given and FILE or the variable names another database than the instance in DIR has,
a command returns an error. Lists use --object-type and --object-id (or --object) for the object.
--type is the type of the event in lists of events, and the type of the object in lists of objects.
Exit status: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 several match.`,
		Example: `  postern dev                          # everything in one process; use a separate terminal
  postern send stripe invoice.paid     # a signed, realistic delivery
  postern events list
  postern objects show stripe invoice in_1Postern0Jan0001`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs,
		RunE:          showHelpOrError,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			c.dirGiven = cmd.Flags().Changed("dir")
			if c.output != "table" && c.output != "json" {
				return usagef("output %q is not known: write -o table or -o json", c.output)
			}
			return nil
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		var invalid *pflag.InvalidValueError
		if errors.As(err, &invalid) {
			if want := flagValues[invalid.GetFlag().Value.Type()]; want != "" {
				err = fmt.Errorf("--%s %q is not valid: write %s", invalid.GetFlag().Name, invalid.GetValue(), want)
			}
		}
		return usagef("%v; see %s --help", err, cmd.CommandPath())
	})
	flags := root.PersistentFlags()
	flags.StringVar(&c.config, "config", "", "configuration `file` of the instance")
	flags.StringVar(&c.dir, "dir", ".postern", "`folder` of a dev instance")
	flags.StringVarP(&c.output, "output", "o", "table", "output `format`: table or json")
	completeFlag(root, "output", "table", "json")
	root.AddCommand(newDevCommand(c), newServeCommand(c), newFindCommand(c), newEventsCommand(c), newObjectsCommand(c),
		newOutcomesCommand(c), newRejectionsCommand(c), newConflictsCommand(c),
		newReplayCommand(c), newRetryCommand(c), newRebuildCommand(c), newReconcileCommand(c), newRefetchesCommand(c),
		newEffectsCommand(c), newNotifyCommand(c), newDriftCommand(c), newRunsCommand(c), newSchedulesCommand(c),
		newRetentionCommand(c), newRedactCommand(c), newViewsCommand(c), newTokenCommand(c), newAuditCommand(c),
		newVerifyCommand(c), newDoctorCommand(c), newStreamCommand(c), newFeedCommand(c), newSpoolCommand(c),
		newExportCommand(c), newImportCommand(c), newSendCommand(c), newProvidersCommand(c), newTopCommand(c),
		newInitCommand(c), newConfigCommand(c), newMigrateCommand(c), newHealthCommand(c), newVersionCommand(c))
	namePages(root)
	return root
}

// flagValues are the values of flags by type. The errors of pflag name functions of Go instead.
var flagValues = map[string]string{"int": "a whole number", "int64": "a whole number", "float64": "a number",
	"duration": "a time, such as 10s or 5m", "bool": "true or false"}

// showHelpOrError is the action of a command that only has subcommands. It prints the help, or
// returns an error for an unknown name.
func showHelpOrError(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return usagef("no command %q in %s; there are %s", args[0], cmd.CommandPath(), strings.Join(names, ", "))
}

// must panics on programming errors in command definitions, which every test would show.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
