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
	"github.com/postern-gateway/postern/internal/audit"
	"github.com/postern-gateway/postern/internal/replay"
)

// replaying are the flags of `postern replay`.
type replaying struct {
	yes, exact, noWait, preview, dry, publish bool
}

func newReplayCommand(c *cli) *cobra.Command {
	var r replaying
	cmd := &cobra.Command{
		Use:   "replay",
		Short: "Apply stored events again",
		Long: `Apply stored events again: those that the flags choose, all if there are none. It shows first how much that is and asks.

A running processor carries it out, beside the live events, straight from the log; it goes on where it was if that process ends. What is
stored already wins as it always does, so a replay mends what is missing and leaves the rest alone. Each event gets an outcome of its own
under the run's number; the live one stays. What fails is counted and not tried again by itself: the exit
status is 1 then, and postern retry --run N tries it again. Ctrl-C here only ends the watching; postern runs
pause, resume and cancel steer the run.

To have failed or dead events tried again, use postern retry: a replay leaves their live outcome as it is.

--mode says which effects there are of what the replay changes: with state, the default, none, and none come later; with missing those that have no
entry in the ledger. What was changed before is not changed again, and has none. With force what had followed from the chosen events happens again, on purpose:
mails are sent twice. Such a run waits until somebody approves it: postern runs approve.

With --publish the events are applied to nothing: they go to the subjects postern.replays.RUN.> of the stream POSTERN_REPLAYS, for consumers of your own.

With --dry-run everything is decided here and nothing is written: it shows what would change of each object, and how many events would have
which outcome. It reads the events as --config FILE says (for a dev instance as its demo sources do), and holds in memory what would change.`,
		Example: `  postern replay --source stripe --type 'invoice.*' --since 2h --reason 'objects were deleted by hand'
  postern replay --object-type order --object 820982911946154508
  postern replay --source shop --since 1d --dry-run --config postern.yaml
  postern replay --status dead --rate 50 --yes
  postern replay --source shopify --since 25h --yes --once-key "nightly $(date +%F)"   # in a crontab: twice is once`,
		Args: wantArgs(),
	}
	filterFlags(cmd, admin.ReplayParams)
	cmd.Flags().BoolVarP(&r.yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&r.exact, "exact", false, "count instead of estimating")
	cmd.Flags().BoolVar(&r.preview, "preview", false, "show how much it is and end")
	cmd.Flags().BoolVar(&r.dry, "dry-run", false, "decide everything, write nothing, and show what would change")
	cmd.Flags().BoolVar(&r.publish, "publish", false, "publish the events to postern.replays.RUN.> instead of applying them")
	cmd.Flags().BoolVar(&r.noWait, "no-wait", false, "do not watch: print the run's number and end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			return r.run(cmd, c, pool, filterValues(cmd, admin.ReplayParams))
		})
	}
	return cmd
}

func (r *replaying) run(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, values url.Values) error {
	ctx := cmd.Context()
	if status := values.Get("status"); status == "failed" || status == "dead" {
		fmt.Fprintf(cmd.ErrOrStderr(), "postern: a replay leaves the live outcome of %s events as it is; postern retry --status %s tries them again\n", status, status)
	}
	order, err := admin.PlanReplay(ctx, pool, values)
	if err != nil {
		return err
	}
	order.Publish = r.publish
	p, err := admin.PreviewReplay(ctx, pool, order, r.exact)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if r.dry {
		return r.dryRun(cmd, c, pool, order, p.Events)
	}
	switch {
	case c.output != "json":
		fmt.Fprintln(out, previewed(p.Preview)+forces(p.Again))
	case r.preview:
		return printJSON(out, p)
	}
	if r.preview {
		return nil
	}
	if p.Exact && p.Events == 0 {
		run, err := admin.EarlierReplay(ctx, pool, order, values)
		return waitForEarlier(cmd, c, pool, run, err, r.noWait)
	}
	question := "Replay them?"
	switch {
	case r.publish:
		question = "Publish them to postern.replays?"
	case p.Again != nil:
		question = "Replay them, and have these effects happen again?"
	}
	if ok, err := confirm(cmd, question, r.yes); err != nil || !ok {
		return err
	}
	run, err := admin.Replay(ctx, pool, order, operator(), values, p.Events)
	return wait(cmd, c, pool, run, err, r.noWait || order.Mode == replay.Force)
}

// forces says how many effects would happen again; "" where none is to.
func forces(p *replay.AgainPreview) string {
	switch {
	case p == nil:
		return ""
	case p.Exact:
		return fmt.Sprintf("\nOf their effects, at most %d happen again", p.Effects)
	}
	return fmt.Sprintf("\nOf their effects, %d and more happen again; --exact counts them all", p.Effects)
}

// confirm asks a person. Where nobody can be asked, --yes must say it, or the flag of the command that only shows.
func confirm(cmd *cobra.Command, question string, yes bool) (bool, error) {
	if yes {
		return true, nil
	}
	in := cmd.InOrStdin()
	if f, ok := in.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		for _, shows := range []string{"preview", "dry-run"} {
			if cmd.Flags().Lookup(shows) != nil {
				return false, usagef("nobody can be asked here: give --yes, or --%s to see no more than this", shows)
			}
		}
		return false, usagef("nobody can be asked here: give --yes")
	}
	fmt.Fprint(cmd.ErrOrStderr(), question+" [y/N] ")
	answer, err := bufio.NewReader(in).ReadString('\n')
	if err != nil {
		return false, err
	}
	answer = strings.ToLower(strings.TrimSpace(answer))
	return answer == "y" || answer == "yes", nil
}

// operator is who gives the command, as far as the system knows.
func operator() admin.By {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return admin.By{Person: audit.Person{Name: name + "@" + host, Via: audit.Command}}
}

// because is operator with a reason.
func because(reason string) admin.By {
	by := operator()
	by.Reason = reason
	return by
}
