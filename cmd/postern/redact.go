package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
)

// redactFlags are the flags of `postern redact`.
type redactFlags struct{ yes, noWait, preview, informed bool }

func newRedactCommand(c *cli) *cobra.Command {
	var r redactFlags
	cmd := &cobra.Command{
		Use:   "redact",
		Short: "Erase the content of events, and what was derived from it, permanently",
		Long: `Erase events permanently: body and headers, the state of objects from them, and
conflicts and rejected deliveries with the same content. Keys, outcomes and versions stay, so that
duplicates are still detected and no older state returns. The audit trail keeps the actor and the
reason. The command shows how much is selected and asks first.

To erase a person, give --mentions with all ids and e-mail addresses of that person. It finds each
event, object, effect and rejected delivery that mentions one of them as a whole word. --object
clears one object, and the preview says what else mentions it.

A running processor executes the redaction and erases the messages that the feeds still have. It
cannot clear the data of consumers, exports and backups. Files of the database keep dead rows until
their space is used again. Files of NATS keep messages that left a stream before, until NATS removes
their block. Redacted data cannot be restored.`,
		Example: `  postern redact --event evt_1 --reason 'ticket 17' --preview
  postern redact --source shop --object-type customer --object 7 --reason 'ticket 18'
  postern redact --mentions cus_1Postern,ada@example.com --reason 'ticket 19' --preview
  postern redact --source shop --path '$.customer.email' --value - --reason 'ticket 19' --yes
  postern redact pending
  postern redact --from-event 1882151976960000001 --reason 'requested by the shop'`,
		Args: wantArgs(),
	}
	filterFlags(cmd, admin.RedactParams)
	cmd.Flags().BoolVarP(&r.yes, "yes", "y", false, "do not ask for confirmation")
	cmd.Flags().BoolVar(&r.preview, "preview", false, "show how much is selected and exit")
	cmd.Flags().BoolVar(&r.noWait, "no-wait", false, "do not watch: print the run's number and exit")
	cmd.Flags().BoolVar(&r.informed, "informed", false, "with --from-event: the person has received the stored data; "+
		"mark the request as answered and clear only the request itself")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		values := filterValues(cmd, admin.RedactParams)
		if err := readFromStdin(cmd.InOrStdin(), values); err != nil {
			return err
		}
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(),
			func(pool *pgxpool.Pool) error { return r.run(cmd, c, pool, values) })
	}
	cmd.AddCommand(newRedactPendingCommand(c), redactionList.newCommand(c))
	return cmd
}

// readFromStdin reads the value or the mentions from standard input if their flag is -. Mentions
// are one per line.
func readFromStdin(in io.Reader, values url.Values) error {
	lines := bufio.NewReader(in)
	if values.Get("value") == "-" {
		line, err := lines.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read the value: %w", err)
		}
		values.Set("value", strings.TrimSpace(line))
	}
	if values.Get("mentions") == "-" {
		all, err := io.ReadAll(io.LimitReader(lines, maxMentionBytes))
		if err != nil {
			return fmt.Errorf("read the mentions: %w", err)
		}
		values.Set("mentions", strings.TrimSpace(string(all)))
	}
	return nil
}

// maxMentionBytes limits the input of mentions.
const maxMentionBytes = 64 << 10

func (r *redactFlags) run(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, values url.Values) error {
	ctx, out, reason := cmd.Context(), cmd.OutOrStdout(), strings.TrimSpace(values.Get("reason"))
	if reason == "" && !r.preview {
		return usagef("give a reason with --reason: only the reason is kept after the redaction")
	}
	params, request, err := admin.ParseRedaction(ctx, pool, values)
	if err != nil {
		return err
	}
	preview, err := redaction.BuildPreview(ctx, pool, params, r.searchProgress(cmd.ErrOrStderr(), c))
	if err != nil {
		return err
	}
	switch {
	case c.output != "json":
		fmt.Fprintln(out, describeRedactionPreview(preview, request))
	case r.preview:
		return printJSON(out, preview)
	}
	if r.preview {
		return nil
	}
	question := "Redact this permanently?"
	if request != nil && request.Kind == provider.EraseReport {
		if !r.informed {
			return usagef("event %d requests the stored data, not its erasure: send the data to the person (see "+
				"postern events list with the object, and postern objects show), then add --informed", request.Event)
		}
		params, question = admin.MarkAnswered(request.Event), "Mark the request as answered, and clear it permanently?"
	} else if r.informed {
		return usagef("--informed is only for --from-event with a request for the stored data")
	}
	if ok, err := confirmWithUser(cmd, question, r.yes); err != nil || !ok {
		return err
	}
	run, err := admin.Redact(ctx, pool, params, operatorWithReason(reason), preview.Events)
	if err != nil {
		return err
	}
	if !r.noWait {
		return watchRun(ctx, out, c, pool, run)
	}
	found, err := runs.Show(ctx, pool, run)
	if err != nil {
		return err
	}
	return printRun(out, c, found)
}

// searchProgress prints at an interval how many events were searched.
func (r *redactFlags) searchProgress(errs io.Writer, c *cli) func(redaction.Preview) {
	printedAt := time.Now()
	return func(p redaction.Preview) {
		if c.output != "json" && time.Since(printedAt) >= lineInterval {
			printedAt = time.Now()
			fmt.Fprintf(errs, "postern: searched %d events, %d are selected\n", p.Examined, p.Events)
		}
	}
}

// notClearedText lists what a redaction does not clear.
const notClearedText = `Not cleared: data of consumers of the feeds, exports, backups.
Files of NATS keep messages that left a stream before, and those of a server that is down, until
NATS removes their block: see "Erasing personal data" in docs/operations.md.`

// describeRedactionPreview describes a preview.
func describeRedactionPreview(p *redaction.Preview, request *redaction.Request) string {
	var lines []string
	if request != nil {
		lines = append(lines, fmt.Sprintf("%s of source %s, account %s, received %s, due %s", request.Type,
			request.Source, request.Account, request.ReceivedAt, request.Due))
	}
	if p.Requests > 0 {
		lines = append(lines, fmt.Sprintf("%s of the sender without an answer would be cleared too, and stays until "+
			"it is answered: see postern redact pending.", countOf(int(p.Requests), "request")))
	}
	if p.Unread > 0 {
		lines = append(lines, fmt.Sprintf("%s cannot be read as JSON or a form, such as event %d: the value was "+
			"searched as written, so a differently encoded value is not found.",
			countOf(int(p.Unread), "event"), p.FirstUnread))
	}
	alsoCleared := describeAlsoCleared(p)
	if p.Events+p.Dropped+p.Objects == 0 {
		lines = append(lines, "No events are selected.")
		if alsoCleared != "" {
			lines = append(lines, alsoCleared, notClearedText)
		}
		return strings.Join(append(lines, describeNotSelected(p)...), "\n")
	}
	stored := ""
	if p.Events+p.Dropped > 0 {
		stored = fmt.Sprintf(", stored %s to %s", p.From, p.To)
	}
	lines = append(lines, fmt.Sprintf("%s of %s%s", countOf(int(p.Events), "event"), countOf(int(p.Objects), "object"),
		stored))
	if len(p.Types) > 1 {
		lines = append(lines, "Chosen:"+describeTypes(p.Types))
	}
	if alsoCleared != "" {
		lines = append(lines, alsoCleared)
	}
	if p.AlreadyRedacted > 0 {
		lines = append(lines, fmt.Sprintf("%d of them are already redacted.", p.AlreadyRedacted))
	}
	if p.WholeDeliveries {
		lines = append(lines,
			"Some share a delivery with other events. A delivery has one body, so all of its events are cleared.")
	}
	if p.Dropped > 0 {
		lines = append(lines, fmt.Sprintf("%s more were dropped by retention; the state that objects have from them "+
			"is cleared.", strconv.FormatInt(p.Dropped, 10)))
	}
	return strings.Join(append(append(lines, describeNotSelected(p)...), notClearedText), "\n")
}

// describeAlsoCleared counts what is cleared in addition to events and objects; "" if nothing is.
func describeAlsoCleared(p *redaction.Preview) string {
	var parts []string
	for _, cleared := range []struct {
		n    int64
		what string
	}{{p.Rejections, "rejection"}, {p.Conflicts, "conflict"}, {p.Effects, "effect"}, {p.Refetches, "refetch request"},
		{p.Differences, "difference"}} {
		if cleared.n > 0 {
			parts = append(parts, countOf(int(cleared.n), cleared.what))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "Cleared too: " + strings.Join(parts, ", ") + "."
}

// describeNotSelected lists what mentions the person and is not cleared, and the flags to clear it
// too.
func describeNotSelected(p *redaction.Preview) (lines []string) {
	if len(p.SharedTypes) > 0 {
		var kinds []string
		for _, t := range p.SharedTypes {
			kinds = append(kinds, t.Type)
		}
		lines = append(lines, "Also names another person, and stays:"+describeTypes(p.SharedTypes),
			"To clear that too, add --include "+strings.Join(kinds, ",")+".")
	}
	if len(p.Others) > 0 {
		lines = append(lines, "Mentions the object, and stays:"+describeTypes(p.Others),
			"To clear that too, use --mentions with the ids and e-mail addresses of the person instead of --object.")
	}
	return lines
}

// describeTypes lists counts by type, one per line.
func describeTypes(types []redaction.TypeCount) (all string) {
	for _, t := range types {
		var parts []string
		if t.Objects > 0 {
			parts = append(parts, countOf(int(t.Objects), "object"))
		}
		if t.Events > 0 {
			parts = append(parts, countOf(int(t.Events), "event"))
		}
		if t.Example != "" {
			parts = append(parts, "such as "+t.Example)
		}
		all += fmt.Sprintf("\n  %s: %s", t.Type, strings.Join(parts, ", "))
	}
	return all
}

var requestColumns = []column[redaction.Request]{
	{"EVENT", func(r redaction.Request) string { return strconv.FormatInt(r.Event, 10) }},
	{"SOURCE", func(r redaction.Request) string { return r.Source }},
	{"TYPE", func(r redaction.Request) string { return r.Type }},
	{"ACCOUNT", func(r redaction.Request) string { return r.Account }},
	{"RECEIVED", func(r redaction.Request) string { return r.ReceivedAt.String() }},
	{"DUE", func(r redaction.Request) string { return r.Due.String() }},
	{"PROBLEM", func(r redaction.Request) string { return r.Problem }},
}

func newRedactPendingCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "pending", Short: "List requests of senders from the last 90 days that are not answered",
		Example: "  postern redact pending", Args: wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				pending, err := redaction.PendingRequests(cmd.Context(), pool, time.Now().Add(-redaction.PendingWithin))
				if err != nil {
					return err
				}
				list := &listPrinter[redaction.Request]{out: cmd.OutOrStdout(), json: c.output == "json",
					columns: requestColumns, emptyText: "No request is unanswered."}
				return errors.Join(list.add(pending), list.end())
			})
		},
	}
}

var redactionList = listCommand[redaction.AuditEntry]{
	subject: "executed redactions, the newest first", example: "  postern redact list",
	params: admin.RedactionParams,
	query:  admin.Redactions,
	columns: []column[redaction.AuditEntry]{
		{"RUN", func(d redaction.AuditEntry) string { return strconv.FormatInt(d.Run, 10) }},
		{"EVENTS", func(d redaction.AuditEntry) string { return strconv.FormatInt(d.Events, 10) }},
		{"OBJECTS", func(d redaction.AuditEntry) string { return strconv.FormatInt(d.Objects, 10) }},
		{"STARTED", func(d redaction.AuditEntry) string { return d.BeganAt.String() }},
		{"ENDED", func(d redaction.AuditEntry) string { return d.EndedAt.String() }},
		{"ACTOR", func(d redaction.AuditEntry) string { return d.Actor }},
		{"REASON", func(d redaction.AuditEntry) string { return d.Reason }},
	},
	emptyText: "No redactions.",
}

// describeRedactionCounts describes the counts of a redaction.
func describeRedactionCounts(counts map[string]int64) string {
	parts := []string{fmt.Sprintf("%d redacted", counts[redaction.CountEvents]),
		countOf(int(counts[redaction.CountObjects]), "object") + " cleared"}
	for _, what := range []string{redaction.CountConflicts, redaction.CountRejections, redaction.CountMessages} {
		if n := counts[what]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s cleared", n, what))
		}
	}
	if n := counts[redaction.CountRequests]; n > 0 {
		parts = append(parts, countOf(int(n), "request")+" not cleared, still to be answered")
	}
	if n := counts[redaction.CountShared]; n > 0 {
		parts = append(parts, countOf(int(n), "event")+" not cleared, because they name another person too")
	}
	if n := counts[redaction.CountUnread]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d could not be read", n))
	}
	if n := counts[redaction.CountExamined]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d searched", n))
	}
	return strings.Join(parts, ", ")
}
