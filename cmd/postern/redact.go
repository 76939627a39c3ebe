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

// redacting are the flags of `postern redact`.
type redacting struct{ yes, noWait, preview, told bool }

func newRedactCommand(c *cli) *cobra.Command {
	var r redacting
	cmd := &cobra.Command{
		Use:   "redact",
		Short: "Clear events for good, and what was made of them, as the law may ask",
		Long: `Clear events for good: body and headers, the state of objects that they made, conflicts and refused deliveries of the same content. Keys, outcomes and
versions stay, so that a duplicate stays one and nothing older comes back; an audit keeps who had it done and why. It shows first how much that is and asks.

To erase a person, give --mentions with all ids and e-mail addresses of that person: it finds each event, object, effect and
refused delivery that mentions one of them as a whole word. --object clears one object, and the preview says what else
mentions it.

A running processor carries it out, and erases the messages that the feeds still hold. It cannot
clear what consumers made of them, exports and backups. Files of the database keep dead rows until
their space is used again. Files of NATS keep messages that left a stream before until NATS removes
their block. Nothing brings back what is redacted.`,
		Example: `  postern redact --event evt_1 --reason 'ticket 17' --preview
  postern redact --source shop --object-type customer --object 7 --reason 'ticket 18'
  postern redact --mentions cus_1Postern,ada@example.com --reason 'ticket 19' --preview
  postern redact --source shop --path '$.customer.email' --value - --reason 'ticket 19' --yes
  postern redact pending
  postern redact --from-event 1882151976960000001 --reason 'asked for by the shop'`,
		Args: wantArgs(),
	}
	filterFlags(cmd, admin.RedactParams)
	cmd.Flags().BoolVarP(&r.yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&r.preview, "preview", false, "show how much it is and end")
	cmd.Flags().BoolVar(&r.noWait, "no-wait", false, "do not watch: print the run's number and end")
	cmd.Flags().BoolVar(&r.told, "told", false, "with --from-event: the person has been told what is stored; mark the request as answered and clear it, and nothing else")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		values := filterValues(cmd, admin.RedactParams)
		if err := readValue(cmd.InOrStdin(), values); err != nil {
			return err
		}
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error { return r.run(cmd, c, pool, values) })
	}
	cmd.AddCommand(newRedactPendingCommand(c), redactionLister.command(c))
	return cmd
}

// readValue takes the value or the mentions from standard input where - is given for them: a line each.
func readValue(in io.Reader, values url.Values) error {
	lines := bufio.NewReader(in)
	if values.Get("value") == "-" {
		line, err := lines.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read the value: %w", err)
		}
		values.Set("value", strings.TrimSpace(line))
	}
	if values.Get("mentions") == "-" {
		all, err := io.ReadAll(io.LimitReader(lines, maxMentionText))
		if err != nil {
			return fmt.Errorf("read the mentions: %w", err)
		}
		values.Set("mentions", strings.TrimSpace(string(all)))
	}
	return nil
}

// maxMentionText bounds what is read of mentions, in bytes.
const maxMentionText = 64 << 10

func (r *redacting) run(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, values url.Values) error {
	ctx, out, reason := cmd.Context(), cmd.OutOrStdout(), strings.TrimSpace(values.Get("reason"))
	if reason == "" && !r.preview {
		return usagef("say why with --reason: it is all that will be left")
	}
	order, request, err := admin.PlanRedaction(ctx, pool, values)
	if err != nil {
		return err
	}
	look, err := redaction.Look(ctx, pool, order, r.progress(cmd.ErrOrStderr(), c))
	if err != nil {
		return err
	}
	switch {
	case c.output != "json":
		fmt.Fprintln(out, foreseen(look, request))
	case r.preview:
		return printJSON(out, look)
	}
	if r.preview {
		return nil
	}
	question := "Redact this for good?"
	if request != nil && request.Kind == provider.EraseTell {
		if !r.told {
			return usagef("event %d asks to be told what is stored, not to have it cleared: tell the person (see postern events list with the object, and postern objects show), then give --told", request.Event)
		}
		order, question = admin.Told(request.Event), "Mark the request as answered, and clear it for good?"
	} else if r.told {
		return usagef("--told goes with --from-event of a request to be told")
	}
	if ok, err := confirm(cmd, question, r.yes); err != nil || !ok {
		return err
	}
	run, err := admin.Redact(ctx, pool, order, because(reason), look.Events)
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

// progress tells now and then how far the look through the log is.
func (r *redacting) progress(errs io.Writer, c *cli) func(redaction.Preview) {
	told := time.Now()
	return func(p redaction.Preview) {
		if c.output != "json" && time.Since(told) >= tellEvery {
			told = time.Now()
			fmt.Fprintf(errs, "postern: looked at %d events, %d are chosen\n", p.Looked, p.Events)
		}
	}
}

// notCleared tells what a redaction leaves.
const notCleared = `Not cleared: what consumers of the feeds have, exports, backups.
Files of NATS keep messages that left a stream before, and those of a server that is down, until
NATS removes their block: see "Requests to forget somebody" in docs/operations.md.`

// foreseen is a preview in words.
func foreseen(p *redaction.Preview, request *redaction.Request) string {
	var lines []string
	if request != nil {
		lines = append(lines, fmt.Sprintf("%s of source %s, account %s, received %s, due %s", request.Type, request.Source, request.Account, request.ReceivedAt, request.Due))
	}
	if p.Requests > 0 {
		lines = append(lines, fmt.Sprintf("%s of the sender that nobody has answered would go too, and stays until it is: see postern redact pending.", counted(int(p.Requests), "request")))
	}
	if p.Unread > 0 {
		lines = append(lines, fmt.Sprintf("%s looked at cannot be read as JSON or a form, as event %d: there was looked for the value as it stands, which finds none that is written otherwise.",
			counted(int(p.Unread), "event"), p.FirstUnread))
	}
	beside := besideLine(p)
	if p.Events+p.Dropped+p.Objects == 0 {
		lines = append(lines, "No events are chosen.")
		if beside != "" {
			lines = append(lines, beside, notCleared)
		}
		return strings.Join(append(lines, leftLines(p)...), "\n")
	}
	stored := ""
	if p.Events+p.Dropped > 0 {
		stored = fmt.Sprintf(", stored %s to %s", p.From, p.To)
	}
	lines = append(lines, fmt.Sprintf("%s of %s%s", counted(int(p.Events), "event"), counted(int(p.Objects), "object"), stored))
	if len(p.Types) > 1 {
		lines = append(lines, "Chosen:"+typeLines(p.Types))
	}
	if beside != "" {
		lines = append(lines, beside)
	}
	if p.Already > 0 {
		lines = append(lines, fmt.Sprintf("%d of them are redacted already.", p.Already))
	}
	if p.Shared {
		lines = append(lines, "Some came in one delivery with others: a delivery has one body, so all of its events are cleared.")
	}
	if p.Dropped > 0 {
		lines = append(lines, fmt.Sprintf("%s more are dropped by retention; what they left in objects is cleared.", strconv.FormatInt(p.Dropped, 10)))
	}
	return strings.Join(append(append(lines, leftLines(p)...), notCleared), "\n")
}

// besideLine counts what is cleared beside events and objects; "" where that is nothing.
func besideLine(p *redaction.Preview) string {
	var parts []string
	for _, kept := range []struct {
		n    int64
		what string
	}{{p.Rejections, "rejection"}, {p.Conflicts, "conflict"}, {p.Effects, "effect"}, {p.Refetches, "refetch request"}, {p.Differences, "difference"}} {
		if kept.n > 0 {
			parts = append(parts, counted(int(kept.n), kept.what))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "Cleared too: " + strings.Join(parts, ", ") + "."
}

// leftLines tell what mentions the person and is left, and what to give to have it cleared too.
func leftLines(p *redaction.Preview) (lines []string) {
	if len(p.SharedTypes) > 0 {
		var kinds []string
		for _, t := range p.SharedTypes {
			kinds = append(kinds, t.Type)
		}
		lines = append(lines, "Names another person too, and stays:"+typeLines(p.SharedTypes),
			"To clear that too, give --include "+strings.Join(kinds, ",")+".")
	}
	if len(p.Others) > 0 {
		lines = append(lines, "Mentions the object, and stays:"+typeLines(p.Others),
			"To clear that too, give --mentions with the ids and e-mail addresses of the person, instead of --object.")
	}
	return lines
}

// typeLines are counts by type, on a line each.
func typeLines(types []redaction.TypeCount) (all string) {
	for _, t := range types {
		var parts []string
		if t.Objects > 0 {
			parts = append(parts, counted(int(t.Objects), "object"))
		}
		if t.Events > 0 {
			parts = append(parts, counted(int(t.Events), "event"))
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
		Use: "pending", Short: "List what senders have asked for in the last 90 days and nobody has answered", Example: "  postern redact pending", Args: wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				pending, err := redaction.Pending(cmd.Context(), pool, time.Now().Add(-redaction.PendingWithin))
				if err != nil {
					return err
				}
				list := &sink[redaction.Request]{out: cmd.OutOrStdout(), json: c.output == "json", columns: requestColumns, none: "Nothing is asked for that is not answered."}
				return errors.Join(list.add(pending), list.end())
			})
		},
	}
}

var redactionLister = lister[redaction.Done]{
	what: "redactions that were carried out, the newest first", example: "  postern redact list", params: admin.RedactionParams,
	query: admin.Redactions,
	columns: []column[redaction.Done]{
		{"RUN", func(d redaction.Done) string { return strconv.FormatInt(d.Run, 10) }},
		{"EVENTS", func(d redaction.Done) string { return strconv.FormatInt(d.Events, 10) }},
		{"OBJECTS", func(d redaction.Done) string { return strconv.FormatInt(d.Objects, 10) }},
		{"BEGAN", func(d redaction.Done) string { return d.BeganAt.String() }},
		{"ENDED", func(d redaction.Done) string { return d.EndedAt.String() }},
		{"WHO", func(d redaction.Done) string { return d.Who }},
		{"REASON", func(d redaction.Done) string { return d.Reason }},
	},
	none: "Nothing was redacted.",
}

// redactionCounts are what a run of redaction has done, in words.
func redactionCounts(counts map[string]int64) string {
	parts := []string{fmt.Sprintf("%d redacted", counts[redaction.CountEvents]), counted(int(counts[redaction.CountObjects]), "object") + " cleared"}
	for _, what := range []string{redaction.CountConflicts, redaction.CountRejections, redaction.CountMessages} {
		if n := counts[what]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s cleared", n, what))
		}
	}
	if n := counts[redaction.CountRequests]; n > 0 {
		parts = append(parts, counted(int(n), "request")+" left to be answered")
	}
	if n := counts[redaction.CountShared]; n > 0 {
		parts = append(parts, counted(int(n), "event")+" left where another person is named too")
	}
	if n := counts[redaction.CountUnread]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d could not be read", n))
	}
	if n := counts[redaction.CountSeen]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d looked at", n))
	}
	return strings.Join(parts, ", ")
}
