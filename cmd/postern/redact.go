package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
)

func newRedactCommand(c *cli) *cobra.Command {
	cmd := command{
		use: "redact", short: "Erase the content of events, and what was derived from it, permanently",
		long: `Erase events permanently: body and headers, the state of objects from them, and
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
		example: `  postern redact --event evt_1 --reason 'ticket 17' --preview
  postern redact --source shop --object-type customer --object 7 --reason 'ticket 18'
  postern redact --mentions cus_1Postern,ada@example.com --reason 'ticket 19' --preview
  postern redact --source shop --path '$.customer.email' --value - --reason 'ticket 19' --yes
  postern redact pending
  postern redact --from-event 1882151976960000001 --reason 'requested by the shop'`,
		params: operations.Params(operations.RedactParams{}),
		flags: []flag{yesFlag, noWaitFlag, {"preview", "show how much is selected and exit", false},
			{"informed", "with --from-event: the person has received the stored data; mark the request as answered " +
				"and clear only the request itself", false}},
		check: func(x *call) error {
			if !x.has("preview") {
				if err := x.requireReason(": only the reason is kept after the redaction"); err != nil {
					return err
				}
			}
			return readFromStdin(x.in, x.values)
		},
		run: startRedaction,
	}.build(c)
	cmd.AddCommand(newRedactPendingCommand(c), redactionList.newCommand(c))
	return cmd
}

// readFromStdin reads the value or the mentions from standard input if their flag is -. Mentions
// are one per line.
func readFromStdin(in io.Reader, values map[string]string) error {
	lines := bufio.NewReader(in)
	if values["value"] == "-" {
		line, err := lines.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read the value: %w", err)
		}
		values["value"] = strings.TrimSpace(line)
	}
	if values["mentions"] == "-" {
		all, err := io.ReadAll(io.LimitReader(lines, maxMentionBytes))
		if err != nil {
			return fmt.Errorf("read the mentions: %w", err)
		}
		values["mentions"] = strings.TrimSpace(string(all))
	}
	return nil
}

// maxMentionBytes limits the input of mentions.
const maxMentionBytes = 64 << 10

func startRedaction(x *call) error {
	p, err := parse[operations.RedactParams](x)
	if err != nil {
		return err
	}
	params, request, err := p.Redaction(x.ctx, x.pool)
	if err != nil {
		return err
	}
	progress := newProgress(x.errs, lineInterval, x.json())
	progress.printedAt = time.Now()
	preview, err := redaction.BuildPreview(x.ctx, x.pool, params, func(p redaction.Preview) {
		if progress.due(time.Now()) {
			progress.show(fmt.Sprintf("postern: searched %d events, %d are selected", p.Examined, p.Events))
		}
	})
	progress.finish()
	if err != nil {
		return err
	}
	if end, err := x.showPreview(preview, describeRedactionPreview(preview, request)); end {
		return err
	}
	question := "Redact this permanently?"
	if request != nil && request.Kind == provider.EraseReport {
		if !x.has("informed") {
			return usagef("event %d requests the stored data, not its erasure: send the data to the person (see "+
				"postern events list with the object, and postern objects show), then add --informed", request.Event)
		}
		params, question = operations.MarkAnswered(request.Event), "Mark the request as answered, and clear it "+
			"permanently?"
	} else if x.has("informed") {
		return usagef("--informed is only for --from-event with a request for the stored data")
	}
	if ok, err := x.confirm(question); err != nil || !ok {
		return err
	}
	run, err := operations.Redact(x.ctx, x.pool, params, x.reason(), preview.Events, operator())
	switch {
	case err != nil:
		return err
	case !x.has(noWaitFlag.name):
		return x.watchRun(run)
	}
	found, err := runs.Show(x.ctx, x.pool, run)
	return show(x, found, err, printRun)
}

// notClearedText lists what a redaction does not clear.
const notClearedText = `Not cleared: data of consumers of the feeds, exports, backups.
Files of NATS keep messages that left a stream before, and those of a server that is down, until
NATS removes their block: see docs/how-to/erase-a-customer.md.`

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
		lines = append(lines, fmt.Sprintf("%d more were dropped by retention; the state that objects have from them "+
			"is cleared.", p.Dropped))
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
	{"EVENT", func(r redaction.Request) any { return r.Event }},
	{"SOURCE", func(r redaction.Request) any { return r.Source }},
	{"TYPE", func(r redaction.Request) any { return r.Type }},
	{"ACCOUNT", func(r redaction.Request) any { return r.Account }},
	{"RECEIVED", func(r redaction.Request) any { return r.ReceivedAt }},
	{"DUE", func(r redaction.Request) any { return r.Due }},
	{"PROBLEM", func(r redaction.Request) any { return r.Problem }},
}

func newRedactPendingCommand(c *cli) *cobra.Command {
	return command{
		use: "pending", short: "List requests of senders from the last 90 days that are not answered",
		example: "  postern redact pending",
		run: func(x *call) error {
			pending, err := redaction.PendingRequests(x.ctx, x.pool, time.Now().Add(-redaction.PendingWithin))
			if err != nil {
				return err
			}
			return printList(x, pending, requestColumns, "No request is unanswered.")
		},
	}.build(c)
}

var redactionList = listCommand[redaction.AuditEntry, operations.Page]{
	subject: "executed redactions, the newest first", example: "  postern redact list",
	query: operations.ListPages(redaction.List),
	columns: []column[redaction.AuditEntry]{
		{"RUN", func(d redaction.AuditEntry) any { return d.Run }},
		{"EVENTS", func(d redaction.AuditEntry) any { return d.Events }},
		{"OBJECTS", func(d redaction.AuditEntry) any { return d.Objects }},
		{"STARTED", func(d redaction.AuditEntry) any { return d.BeganAt }},
		{"ENDED", func(d redaction.AuditEntry) any { return d.EndedAt }},
		{"ACTOR", func(d redaction.AuditEntry) any { return d.Actor }},
		{"REASON", func(d redaction.AuditEntry) any { return d.Reason }},
	},
	emptyText: "No redactions.",
}

// describeRedactionCounts describes the counts of a redaction.
func describeRedactionCounts(counts map[string]int64) string {
	parts := []string{fmt.Sprintf("%d redacted", counts[redaction.CountEvents]),
		countOf(int(counts[redaction.CountObjects]), "object") + " cleared"}
	for _, what := range []string{redaction.CountConflicts, redaction.CountRejections, redaction.CountMessages} {
		parts = appendCounts(parts, counts, what, what+" cleared")
	}
	if n := counts[redaction.CountRequests]; n > 0 {
		parts = append(parts, countOf(int(n), "request")+" not cleared, still to be answered")
	}
	if n := counts[redaction.CountShared]; n > 0 {
		parts = append(parts, countOf(int(n), "event")+" not cleared, because they name another person too")
	}
	return strings.Join(appendCounts(parts, counts, redaction.CountUnread, "could not be read",
		redaction.CountExamined, "searched"), ", ")
}
