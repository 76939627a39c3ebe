package main

import (
	"bufio"
	"fmt"
	"net/url"
	"os"
	"os/user"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/replay"
)

// replayFlags are the flags of `postern replay`.
type replayFlags struct {
	yes, exact, noWait, preview, dryRunOnly, publish bool
}

func newReplayCommand(c *cli) *cobra.Command {
	var r replayFlags
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Apply stored events again",
		Long: `Apply stored events again: those that the flags select, all without flags. The command
shows how much is selected and asks first.

A running processor executes the run in addition to live events, directly from the log. If that
process ends, another one continues the run. The usual rules decide, so a replay restores what is
missing and changes nothing else. Each event gets an additional outcome with the run's number; the
live outcome stays. Failures are counted and not retried automatically: the exit status is 1 then,
and postern retry --run N retries them. Ctrl-C stops only the watching; postern runs pause, resume
and cancel control the run.

To retry failed or dead events, use postern retry: a replay does not change their live outcome.

--mode selects the effects of the replayed changes. state, the default, plans none, now or later.
missing plans those without an entry in the ledger. A change that was applied before is not applied
again and has no effects. force repeats all effects of the selected events: mails are sent twice.
Such a run needs an approval: postern runs approve.

With --publish the events are not applied. They are published to the subjects postern.replays.RUN.>
of the stream POSTERN_REPLAYS, for your own consumers.

With --dry-run everything is decided and nothing is written. The command shows the changes of each
object and the number of events by outcome. It reads events with the sources of --config FILE (for a
dev instance, with its demo sources), and keeps the changes in memory.`,
		Example: `  postern replay --source stripe --type 'invoice.*' --since 2h --reason 'objects were deleted by hand'
  postern replay --object-type order --object 820982911946154508
  postern replay --source shop --since 1d --dry-run --config postern.yaml
  postern replay --status dead --rate 50 --yes
  postern replay --source shopify --since 25h --yes --idempotency-key "nightly $(date +%F)"` +
			`   # in a crontab: one run per day`,
		Args: wantArgs(),
	}
	filterFlags(cmd, admin.ReplayParams)
	cmd.Flags().BoolVarP(&r.yes, "yes", "y", false, "do not ask for confirmation")
	cmd.Flags().BoolVar(&r.exact, "exact", false, "count instead of estimating")
	cmd.Flags().BoolVar(&r.preview, "preview", false, "show how much is selected and exit")
	cmd.Flags().BoolVar(&r.dryRunOnly, "dry-run", false, "decide everything, write nothing, and show the changes")
	cmd.Flags().BoolVar(&r.publish, "publish", false,
		"publish the events to postern.replays.RUN.> instead of applying them")
	cmd.Flags().BoolVar(&r.noWait, "no-wait", false, "do not watch: print the run's number and exit")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			return r.run(cmd, c, pool, filterValues(cmd, admin.ReplayParams))
		})
	}
	return cmd
}

func (r *replayFlags) run(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, values url.Values) error {
	ctx := cmd.Context()
	if status := values.Get("status"); status == "failed" || status == "dead" {
		fmt.Fprintf(cmd.ErrOrStderr(), "postern: a replay does not change the live outcome of %s events; postern "+
			"retry --status %s tries them again\n", status, status)
	}
	params, err := admin.ParseReplay(ctx, pool, values)
	if err != nil {
		return err
	}
	params.Publish = r.publish
	p, err := admin.PreviewReplay(ctx, pool, params, r.exact)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if r.dryRunOnly {
		return r.dryRun(cmd, c, pool, params, p.Events)
	}
	switch {
	case c.output != "json":
		fmt.Fprintln(out, describePreview(p.Preview)+describeForcedEffects(p.RepeatedEffects))
	case r.preview:
		return printJSON(out, p)
	}
	if r.preview {
		return nil
	}
	if p.ExactCounts && p.Events == 0 {
		run, err := admin.ExistingReplay(ctx, pool, params, values)
		return waitForEarlier(cmd, c, pool, run, err, r.noWait)
	}
	question := "Replay them?"
	switch {
	case r.publish:
		question = "Publish them to postern.replays?"
	case p.RepeatedEffects != nil && (p.RepeatedEffects.Effects > 0 || !p.RepeatedEffects.Complete):
		question = "Replay them, and repeat these effects?"
	}
	if ok, err := confirmWithUser(cmd, question, r.yes); err != nil || !ok {
		return err
	}
	run, err := admin.Replay(ctx, pool, params, operator(), values, p.Events)
	return showOrWatch(cmd, c, pool, run, err, r.noWait || params.Mode == replay.Force)
}

// describeForcedEffects says how many effects would be repeated; "" if none would.
func describeForcedEffects(p *replay.ForcePreview) string {
	switch {
	case p == nil:
		return ""
	case p.Complete && p.Effects == 0:
		return "\nNo effects are repeated"
	case p.Complete:
		return fmt.Sprintf("\nOf their effects, at most %d are repeated", p.Effects)
	}
	return fmt.Sprintf("\nOf their effects, %d or more are repeated; --exact counts them all", p.Effects)
}

// confirmWithUser asks on the terminal. Without a terminal, the command needs --yes or a flag that
// only shows.
func confirmWithUser(cmd *cobra.Command, question string, yes bool) (bool, error) {
	if yes {
		return true, nil
	}
	in := cmd.InOrStdin()
	if f, ok := in.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		for _, flag := range []string{"preview", "dry-run"} {
			if cmd.Flags().Lookup(flag) != nil {
				return false, usagef("no terminal to ask for confirmation: add --yes, or --%s to change nothing", flag)
			}
		}
		return false, usagef("no terminal to ask for confirmation: add --yes")
	}
	fmt.Fprint(cmd.ErrOrStderr(), question+" [y/N] ")
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		return false, err
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes", nil
}

// operator returns the user of this command according to the operating system.
func operator() admin.Requester {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return admin.Requester{Actor: adminauth.Actor{Name: name + "@" + host, Via: adminauth.ViaCommand}}
}

// operatorWithReason is operator with a reason.
func operatorWithReason(reason string) admin.Requester {
	by := operator()
	by.Reason = reason
	return by
}
