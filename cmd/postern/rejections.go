package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
)

// rejectionSelection holds the rejections that `postern rejections verify` and `reprocess` work on,
// and the current configuration of the sources.
type rejectionSelection struct {
	pool      *pgxpool.Pool
	endpoints map[string]ingest.Endpoint
	ids       []int64
}

func newRejectionsVerifyCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify [ID...]",
		Short: "Verify rejected deliveries again with the current secrets",
		Long: `Verify the rejections with the given IDs, or those that the flags select, as of their time
of receipt, with the current secrets and settings in --config FILE. The sources of a running
postern dev need no --config. Nothing is written; postern rejections reprocess stores what is valid
now.`,
		Example: `  postern rejections verify 17 --config postern.yaml
  postern rejections verify --source stripe --reason wrong_signature --since 1d --config postern.yaml`,
		Args: cobra.ArbitraryArgs,
	}
	filterFlags(cmd, admin.RejectionParams)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			a, err := selectRejections(cmd.Context(), c, pool, args, filterValues(cmd, admin.RejectionParams))
			if err != nil {
				return err
			}
			out := &listPrinter[ingest.Reverification]{out: cmd.OutOrStdout(), json: c.output == "json",
				columns:   verifiedColumns,
				emptyText: "No rejections."}
			if err := a.verifyEach(cmd.Context(), out.addOne); err != nil {
				return errors.Join(err, out.flush())
			}
			return out.end()
		})
	}
	return cmd
}

var verifiedColumns = []column[ingest.Reverification]{
	{"ID", func(c ingest.Reverification) string { return strconv.FormatInt(c.ID, 10) }},
	{"RECEIVED", func(c ingest.Reverification) string { return c.ReceivedAt.String() }},
	{"SOURCE", func(c ingest.Reverification) string { return c.Source }},
	{"VALID", func(c ingest.Reverification) string { return strconv.FormatBool(c.Verified) }},
	{"EVENTS", func(c ingest.Reverification) string { return strconv.Itoa(len(c.Events)) }},
	{"RESULT", func(c ingest.Reverification) string { return c.Result }},
}

// selectRejections finds the rejections by their ids or by a filter.
func selectRejections(ctx context.Context, c *cli, pool *pgxpool.Pool, args []string,
	values url.Values) (*rejectionSelection, error) {
	a := &rejectionSelection{pool: pool, endpoints: map[string]ingest.Endpoint{}}
	if len(args) > 0 && len(values) > 0 {
		return nil, usagef("give either ids of rejections or flags that select them")
	}
	for _, arg := range args {
		id, err := parseID(arg, "postern rejections list")
		if err != nil {
			return nil, err
		}
		a.ids = append(a.ids, id)
	}
	endpoints, err := c.endpoints(config.LoadDev)
	if err != nil {
		return nil, err
	}
	known, err := events.RegisterSources(ctx, pool, nil)
	if err != nil {
		return nil, err
	}
	for _, e := range endpoints {
		a.endpoints[e.Source.Name] = ingest.Endpoint{Number: known.Number[e.Source.Name], Config: e.Source,
			Provider: e.Provider}
	}
	if len(args) == 0 {
		list := listCommand[ingest.Rejection]{query: admin.Rejections}
		_, err = list.readPages(ctx, pool, values, 0, func(found []ingest.Rejection) error {
			for _, r := range found {
				a.ids = append(a.ids, r.ID)
			}
			return nil
		})
	}
	slices.Sort(a.ids)
	a.ids = slices.Compact(a.ids)
	return a, err
}

// verifyEach verifies one rejection after the other. It skips those that were deleted meanwhile,
// unless only one was selected.
func (a *rejectionSelection) verifyEach(ctx context.Context, use func(ingest.Reverification) error) error {
	for _, id := range a.ids {
		if err := a.verifyOne(ctx, id, use); err != nil && (!errors.Is(err, events.ErrNotFound) || len(a.ids) == 1) {
			return err
		}
	}
	return nil
}

func (a *rejectionSelection) verifyOne(ctx context.Context, id int64, use func(ingest.Reverification) error) error {
	r, err := ingest.ShowRejection(ctx, a.pool, id)
	if err != nil {
		return err
	}
	checked := ingest.Reverification{Rejection: r.Rejection,
		Result: fmt.Sprintf("source %s is not in this configuration",
			r.Source), Events: []ingest.ReverifiedEvent{}}
	if ep, ok := a.endpoints[r.Source]; ok {
		checked = ingest.Reverify(ep, r)
	}
	return use(checked)
}

// reprocessFlags are the flags of `postern rejections reprocess`.
type reprocessFlags struct {
	yes    bool
	reason string
}

func newRejectionsReprocessCommand(c *cli) *cobra.Command {
	var r reprocessFlags
	cmd := &cobra.Command{
		Use:   "reprocess [ID...] --why TEXT",
		Short: "Store rejected deliveries that are valid now",
		Long: `Verify rejected deliveries again, as postern rejections verify does, and store those
that are valid now, as the gateway would have: with their time of receipt, each event once. The log
keeps the actor and the reason with the verification. The republisher has them applied about a
minute later. Other deliveries stay rejected. The command shows how many are valid and asks first.

Storing needs the database access of a gateway: name a gateway's configuration with --config FILE.`,
		Example: `  postern rejections reprocess 17 --why 'the secret was rotated' --config gateway.yaml
  postern rejections reprocess --source stripe --reason wrong_signature --since 1d ` +
			`--why 'the secret was rotated' --yes --config gateway.yaml`,
		Args: cobra.ArbitraryArgs,
	}
	filterFlags(cmd, admin.RejectionParams)
	cmd.Flags().BoolVarP(&r.yes, "yes", "y", false, "do not ask for confirmation")
	cmd.Flags().StringVar(&r.reason, "why", "", "the reason; required, kept with each event")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if strings.TrimSpace(r.reason) == "" {
			return usagef("give a reason with --why")
		}
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			a, err := selectRejections(cmd.Context(), c, pool, args, filterValues(cmd, admin.RejectionParams))
			if err != nil {
				return err
			}
			return r.run(cmd, c, a, len(args) > 0)
		})
	}
	return cmd
}

// reprocessed is the result of one rejection.
type reprocessed struct {
	ID     int64                    `json:"id"`
	Source string                   `json:"source"`
	Events []ingest.ReverifiedEvent `json:"events"`
	// Stored are Postern's ids of the events, in the order of Events.
	Stored []string `json:"stored"`
	// Note says that the event was stored before, with the same or with other content.
	Note string `json:"note"`
}

var reprocessedColumns = []column[reprocessed]{
	{"REJECTION", func(r reprocessed) string { return strconv.FormatInt(r.ID, 10) }},
	{"SOURCE", func(r reprocessed) string { return r.Source }},
	{"EVENTS", func(r reprocessed) string { return strings.Join(r.Stored, ", ") }},
	{"NOTE", func(r reprocessed) string { return r.Note }},
}

// run verifies the rejections, asks for confirmation and stores the valid ones. If ids were given,
// it returns an error unless all were stored.
func (r *reprocessFlags) run(cmd *cobra.Command, c *cli, a *rejectionSelection, named bool) error {
	ctx, valid, eventCount := cmd.Context(), 0, 0
	err := a.verifyEach(ctx, func(c ingest.Reverification) error {
		if c.Verified {
			valid, eventCount = valid+1, eventCount+len(c.Events)
		} else {
			fmt.Fprintf(cmd.ErrOrStderr(), "rejection %d stays: %s\n", c.ID, escapeControl(c.Result))
		}
		return nil
	})
	if err != nil {
		return err
	}
	remaining := len(a.ids) - valid
	fmt.Fprintf(cmd.ErrOrStderr(), "%d of %s valid now, with %s\n", valid, countOf(len(a.ids), "rejection"),
		countOf(eventCount, "event"))
	if valid > 0 {
		if ok, err := confirmWithUser(cmd, "Store them in the log?", r.yes); err != nil || !ok {
			return err
		}
		if err := r.reprocess(cmd, c, a); err != nil {
			return err
		}
	}
	if named && remaining > 0 {
		return fmt.Errorf("%s not stored", countOf(remaining, "rejection"))
	}
	return nil
}

func (r *reprocessFlags) reprocess(cmd *cobra.Command, c *cli, a *rejectionSelection) error {
	ctx := cmd.Context()
	log, err := c.connectAs(ctx, cmd.ErrOrStderr(), gatewayRole, 2)
	if err != nil {
		return fmt.Errorf(
			"%w; storing deliveries needs a gateway's access: name a gateway's configuration with --config FILE", err)
	}
	defer log.Close()
	out := &listPrinter[reprocessed]{out: cmd.OutOrStdout(), json: c.output == "json", columns: reprocessedColumns,
		emptyText: "No deliveries were stored."}
	err = a.verifyEach(ctx, func(c ingest.Reverification) error {
		if !c.Verified {
			return nil
		}
		receipts, err := ingest.Reprocess(ctx, log, &c, operator().Actor, r.reason)
		if err != nil {
			return err
		}
		return out.addOne(newReprocessed(&c, receipts))
	})
	return errors.Join(err, out.end())
}

func newReprocessed(c *ingest.Reverification, receipts []events.Receipt) reprocessed {
	r := reprocessed{ID: c.ID, Source: c.Source, Events: c.Events, Stored: []string{}}
	for _, receipt := range receipts {
		r.Stored = append(r.Stored, strconv.FormatInt(receipt.ID, 10))
		switch {
		case receipt.Conflict:
			r.Note = "the log has the event id with other content: kept as a conflict"
		case receipt.Duplicate && r.Note == "":
			r.Note = "already in the log"
		}
	}
	return r
}
