package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/operations"
)

func newRejectionsCommand(c *cli) *cobra.Command {
	return group("rejections", "List rejected deliveries with the reason for each",
		listCommand[ingest.Rejection, operations.RejectionParams]{
			subject: "rejected deliveries, the newest first",
			example: `  postern rejections list
  postern rejections list --source stripe --reason wrong_signature --since 1d`,
			query: operations.Rejections,
			columns: []column[ingest.Rejection]{
				{"ID", func(r ingest.Rejection) any { return r.ID }},
				{"RECEIVED", func(r ingest.Rejection) any { return r.ReceivedAt }},
				{"SOURCE", func(r ingest.Rejection) any { return r.Source }},
				{"REASON", func(r ingest.Rejection) any { return r.Reason }},
				{"DETAIL", func(r ingest.Rejection) any { return r.Detail }},
				{"REMOTE", func(r ingest.Rejection) any { return r.Remote }},
				{"BYTES", func(r ingest.Rejection) any { return r.Bytes }},
			},
			emptyText: "No rejections.",
		}.newCommand(c), newRejectionsShowCommand(c), newRejectionsVerifyCommand(c), newRejectionsReprocessCommand(c))
}

func newRejectionsShowCommand(c *cli) *cobra.Command {
	return command{
		use: "show ID", short: "Show a rejected delivery: the reason, its usual cause, headers and body",
		example: "  postern rejections show 17\n  postern rejections show 17 --raw > body.json    # the exact bytes",
		ids:     "postern rejections list", flags: []flag{rawFlag},
		run: func(x *call) error {
			r, err := ingest.ShowRejection(x.ctx, x.pool, x.ids[0])
			if err == nil && x.has(rawFlag.name) {
				if r.Truncated {
					fmt.Fprintf(x.errs, "postern: only %d of %d bytes are stored\n", len(r.Body), r.Bytes)
				}
				_, err = x.out.Write(r.Body)
				return err
			}
			return show(x, r, err, printRejection)
		},
	}.build(c)
}

func printRejection(x *call, r *ingest.RejectionDetail) error {
	cut := ""
	if r.Truncated {
		cut = ", truncated: it cannot be verified again"
	}
	if err := printFields(x.out, "rejection", r.ID, "source", r.Source, "received", r.ReceivedAt, "reason", r.Reason,
		"meaning", r.Explanation, "observed", r.Detail, "remote", r.Remote, "headers", string(r.Headers),
		"body", fmt.Sprintf("%d bytes%s", r.Bytes, cut)); err != nil {
		return err
	}
	return printBody(x, r.Body)
}

// rejectionSelection holds the rejections that `postern rejections verify` and `reprocess` work on,
// and the current configuration of the sources.
type rejectionSelection struct {
	pool      *pgxpool.Pool
	endpoints map[string]ingest.Endpoint
	ids       []int64
}

func newRejectionsVerifyCommand(c *cli) *cobra.Command {
	return command{
		use: "verify [ID...]", short: "Verify rejected deliveries again with the current secrets",
		long: `Verify the rejections with the given IDs, or those that the flags select, as of their time
of receipt, with the current secrets and settings in --config FILE. The sources of a running
postern dev need no --config. Nothing is written; postern rejections reprocess stores what is valid
now.`,
		example: `  postern rejections verify 17 --config postern.yaml
  postern rejections verify --source stripe --reason wrong_signature --since 1d --config postern.yaml`,
		params: operations.Params(operations.RejectionParams{}), ids: "postern rejections list", check: checkSelection,
		run: func(x *call) error {
			a, err := selectRejections(x)
			if err != nil {
				return err
			}
			out := &listPrinter[ingest.Reverification]{out: x.out, json: x.json(), columns: verifiedColumns,
				emptyText: "No rejections."}
			if err := a.verifyEach(x.ctx, out.addOne); err != nil {
				return errors.Join(err, out.flush())
			}
			return out.end()
		},
	}.build(c)
}

var verifiedColumns = []column[ingest.Reverification]{
	{"ID", func(c ingest.Reverification) any { return c.ID }},
	{"RECEIVED", func(c ingest.Reverification) any { return c.ReceivedAt }},
	{"SOURCE", func(c ingest.Reverification) any { return c.Source }},
	{"VALID", func(c ingest.Reverification) any { return c.Verified }},
	{"EVENTS", func(c ingest.Reverification) any { return len(c.Events) }},
	{"RESULT", func(c ingest.Reverification) any { return c.Result }},
}

func checkSelection(x *call) error {
	if len(x.args) > 0 && len(x.values) > 0 {
		return usagef("give either ids of rejections or flags that select them")
	}
	return nil
}

// selectRejections finds the rejections by their ids or by a filter.
func selectRejections(x *call) (*rejectionSelection, error) {
	a := &rejectionSelection{pool: x.pool, endpoints: map[string]ingest.Endpoint{}, ids: x.ids}
	endpoints, err := x.endpoints(config.LoadDev)
	if err != nil {
		return nil, err
	}
	known, err := events.RegisterSources(x.ctx, x.pool, nil)
	if err != nil {
		return nil, err
	}
	for _, e := range endpoints {
		a.endpoints[e.Source.Name] = ingest.Endpoint{Number: known.Number[e.Source.Name], Config: e.Source,
			Provider: e.Provider}
	}
	if len(x.args) == 0 {
		p, err := parse[operations.RejectionParams](x)
		if err != nil {
			return nil, err
		}
		if _, err = readPages(x.ctx, x.pool, operations.Rejections, p, 0, func(found []ingest.Rejection) error {
			for _, r := range found {
				a.ids = append(a.ids, r.ID)
			}
			return nil
		}); err != nil {
			return nil, err
		}
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

func newRejectionsReprocessCommand(c *cli) *cobra.Command {
	return command{
		use: "reprocess [ID...] --why TEXT", short: "Store rejected deliveries that are valid now",
		long: `Verify rejected deliveries again, as postern rejections verify does, and store those
that are valid now, as the gateway would have: with their time of receipt, each event once. The log
keeps the actor and the reason with the verification. The republisher has them applied about a
minute later. Other deliveries stay rejected. The command shows how many are valid and asks first.

Storing needs the database access of a gateway: name a gateway's configuration with --config FILE.`,
		example: `  postern rejections reprocess 17 --why 'the secret was rotated' --config gateway.yaml
  postern rejections reprocess --source stripe --reason wrong_signature --since 1d ` +
			`--why 'the secret was rotated' --yes --config gateway.yaml`,
		params: operations.Params(operations.RejectionParams{}), ids: "postern rejections list",
		flags: []flag{yesFlag, {"why", "the reason; required, kept with each event", true}},
		check: func(x *call) error {
			if strings.TrimSpace(x.text("why")) == "" {
				return usagef("give a reason with --why")
			}
			return checkSelection(x)
		},
		run: reprocessValid,
	}.build(c)
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
	{"REJECTION", func(r reprocessed) any { return r.ID }},
	{"SOURCE", func(r reprocessed) any { return r.Source }},
	{"EVENTS", func(r reprocessed) any { return strings.Join(r.Stored, ", ") }},
	{"NOTE", func(r reprocessed) any { return r.Note }},
}

// reprocessValid verifies the rejections, asks for confirmation and stores the valid ones. If ids
// were given, it returns an error unless all were stored.
func reprocessValid(x *call) error {
	a, err := selectRejections(x)
	if err != nil {
		return err
	}
	valid, eventCount := 0, 0
	err = a.verifyEach(x.ctx, func(c ingest.Reverification) error {
		if c.Verified {
			valid, eventCount = valid+1, eventCount+len(c.Events)
		} else {
			fmt.Fprintf(x.errs, "rejection %d stays: %s\n", c.ID, escapeControl(c.Result))
		}
		return nil
	})
	if err != nil {
		return err
	}
	remaining := len(a.ids) - valid
	fmt.Fprintf(x.errs, "%d of %s valid now, with %s\n", valid, countOf(len(a.ids), "rejection"),
		countOf(eventCount, "event"))
	if valid > 0 {
		if ok, err := x.confirm("Store them in the log?"); err != nil || !ok {
			return err
		}
		if err := reprocess(x, a); err != nil {
			return err
		}
	}
	if len(x.args) > 0 && remaining > 0 {
		return fmt.Errorf("%s not stored", countOf(remaining, "rejection"))
	}
	return nil
}

func reprocess(x *call, a *rejectionSelection) error {
	log, err := x.connectAs(x.ctx, x.errs, gatewayRole, 2)
	if err != nil {
		return fmt.Errorf(
			"%w; storing deliveries needs a gateway's access: name a gateway's configuration with --config FILE", err)
	}
	defer log.Close()
	out := &listPrinter[reprocessed]{out: x.out, json: x.json(), columns: reprocessedColumns,
		emptyText: "No deliveries were stored."}
	err = a.verifyEach(x.ctx, func(c ingest.Reverification) error {
		if !c.Verified {
			return nil
		}
		receipts, err := ingest.Reprocess(x.ctx, log, &c, operator().Actor, x.text("why"))
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
		r.Stored = append(r.Stored, toText(receipt.ID))
		switch {
		case receipt.Conflict:
			r.Note = "the log has the event id with other content: kept as a conflict"
		case receipt.Duplicate && r.Note == "":
			r.Note = "already in the log"
		}
	}
	return r
}
