package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/operations"
)

func newRejectionsCommand(c *cli) *cobra.Command {
	return group("rejections", "List rejected deliveries with the reason for each",
		listCommand[ingest.Rejection, operations.RejectionParams]{
			subject: "rejected deliveries, the newest first",
			example: `  postern rejections list
  postern rejections list --source stripe --rejection-reason wrong_signature --since 1d`,
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

func newRejectionsVerifyCommand(c *cli) *cobra.Command {
	return command{
		use: "verify [ID...]", short: "Verify rejected deliveries again with the current secrets",
		long: `Verify the rejections with the given IDs, or those that the flags select, as of their time
of receipt, with the current secrets and settings in --config FILE. The sources of a running
postern dev need no --config. Nothing is written; postern rejections reprocess stores what is valid
now.`,
		example: `  postern rejections verify 17 --config postern.yaml
  postern rejections verify --source stripe --rejection-reason wrong_signature --since 1d --config postern.yaml`,
		params: operations.Params(operations.RejectionParams{}), ids: "postern rejections list", check: checkSelection,
		run: func(x *call) error {
			r, selection, err := newReprocessor(x)
			if err != nil {
				return err
			}
			out := &listPrinter[operations.ReprocessedRejection]{out: x.out, json: x.json(),
				columns: verifiedColumns, emptyText: "No rejections."}
			verify := func(s operations.RejectionSelection) (*operations.RejectionResults, error) {
				return r.Verify(x.ctx, x.pool, s)
			}
			if err := eachRejection(selection, verify, out.addOne); err != nil {
				return errors.Join(err, out.flush())
			}
			return out.end()
		},
	}.build(c)
}

var verifiedColumns = []column[operations.ReprocessedRejection]{
	{"ID", func(c operations.ReprocessedRejection) any { return c.ID }},
	{"RECEIVED", func(c operations.ReprocessedRejection) any { return c.ReceivedAt }},
	{"SOURCE", func(c operations.ReprocessedRejection) any { return c.Source }},
	{"VALID", func(c operations.ReprocessedRejection) any { return c.Verified }},
	{"EVENTS", func(c operations.ReprocessedRejection) any { return len(c.Events) }},
	{"RESULT", func(c operations.ReprocessedRejection) any { return c.Result }},
}

func checkSelection(x *call) error {
	if len(x.args) > 0 && len(x.values) > 0 {
		return usagef("give either ids of rejections or flags that select them")
	}
	return nil
}

// newReprocessor returns a Reprocessor with the current configuration of the sources, and the
// rejections that the call selects.
func newReprocessor(x *call) (*operations.Reprocessor, operations.RejectionSelection, error) {
	p, err := parse[operations.RejectionParams](x)
	if err != nil {
		return nil, operations.RejectionSelection{}, err
	}
	endpoints, err := x.endpoints(config.LoadDev)
	return &operations.Reprocessor{Endpoints: func() []config.Endpoint { return endpoints }},
		operations.RejectionSelection{IDs: x.ids, Source: p.Source, RejectionReason: p.Reason, Since: p.Since,
			Until: p.Until}, err
}

// eachRejection executes an operation for all selected rejections, with one request after the
// other.
func eachRejection(s operations.RejectionSelection,
	do func(operations.RejectionSelection) (*operations.RejectionResults, error),
	use func(operations.ReprocessedRejection) error) error {
	for {
		results, err := do(s)
		if results != nil {
			for _, item := range results.Items {
				err = errors.Join(err, use(item))
			}
		}
		if err != nil || results.Next == nil {
			return err
		}
		s.Cursor = *results.Next
	}
}

func newRejectionsReprocessCommand(c *cli) *cobra.Command {
	return command{
		use: "reprocess [ID...] --reason TEXT", short: "Store rejected deliveries that are valid now",
		long: `Verify rejected deliveries again, as postern rejections verify does, and store those
that are valid now, as the gateway would have: with their time of receipt, each event once. The log
keeps the actor and the reason with the verification. The republisher has them applied about a
minute later. Other deliveries stay rejected. The command shows how many are valid and asks first.

Storing needs the database access of a gateway: name a gateway's configuration with --config FILE.`,
		example: `  postern rejections reprocess 17 --reason 'the secret was rotated' --config gateway.yaml
  postern rejections reprocess --source stripe --rejection-reason wrong_signature --since 1d ` +
			`--reason 'the secret was rotated' --yes --config gateway.yaml`,
		params: operations.Params(operations.RejectionParams{}), ids: "postern rejections list",
		flags: []flag{yesFlag, {"reason", "the reason; required, kept with each event", true}},
		check: func(x *call) error {
			if strings.TrimSpace(x.text("reason")) == "" {
				return usagef("give a reason with --reason")
			}
			return checkSelection(x)
		},
		run: reprocessValid,
	}.build(c)
}

var reprocessedColumns = []column[operations.ReprocessedRejection]{
	{"REJECTION", func(r operations.ReprocessedRejection) any { return r.ID }},
	{"SOURCE", func(r operations.ReprocessedRejection) any { return r.Source }},
	{"EVENTS", func(r operations.ReprocessedRejection) any { return strings.Join(r.Stored, ", ") }},
	{"NOTE", func(r operations.ReprocessedRejection) any { return r.Note }},
}

// reprocessValid verifies the rejections, asks for confirmation and stores the valid ones. If ids
// were given, it returns an error unless all were stored.
func reprocessValid(x *call) error {
	r, selection, err := newReprocessor(x)
	if err != nil {
		return err
	}
	valid, remaining, eventCount := 0, 0, 0
	verify := func(s operations.RejectionSelection) (*operations.RejectionResults, error) {
		return r.Verify(x.ctx, x.pool, s)
	}
	err = eachRejection(selection, verify, func(item operations.ReprocessedRejection) error {
		if item.Verified {
			valid, eventCount = valid+1, eventCount+len(item.Events)
			return nil
		}
		remaining++
		_, err := fmt.Fprintf(x.errs, "rejection %d stays: %s\n", item.ID, escapeControl(item.Result))
		return err
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(x.errs, "%d of %s valid now, with %s\n", valid, countOf(valid+remaining, "rejection"),
		countOf(eventCount, "event"))
	if valid > 0 {
		if ok, err := x.confirm("Store them in the log?"); err != nil || !ok {
			return err
		}
		if err := reprocess(x, r, selection); err != nil {
			return err
		}
	}
	if len(x.args) > 0 && remaining > 0 {
		return fmt.Errorf("%s not stored", countOf(remaining, "rejection"))
	}
	return nil
}

func reprocess(x *call, r *operations.Reprocessor, selection operations.RejectionSelection) (err error) {
	if r.Pool, err = x.connectAs(x.ctx, x.errs, gatewayRole, 2); err != nil {
		return fmt.Errorf(
			"%w; storing deliveries needs a gateway's access: name a gateway's configuration with --config FILE", err)
	}
	defer r.Pool.Close()
	out := &listPrinter[operations.ReprocessedRejection]{out: x.out, json: x.json(), columns: reprocessedColumns,
		emptyText: "No deliveries were stored."}
	store := func(s operations.RejectionSelection) (*operations.RejectionResults, error) {
		return r.Reprocess(x.ctx, x.pool, operations.ReprocessParams{RejectionSelection: s, Reason: x.text("reason")},
			operator())
	}
	err = eachRejection(selection, store, func(item operations.ReprocessedRejection) error {
		if !item.Verified {
			return nil
		}
		return out.addOne(item)
	})
	return errors.Join(err, out.end())
}
