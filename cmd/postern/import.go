package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/archive"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
)

// importing are the flags of `postern import`.
type importing struct {
	format, source, receivedAt, bad, name, reason string
	headers                                       []string
	columns                                       map[string]string
	dryRun                                        bool
}

func newImportCommand(c *cli) *cobra.Command {
	var im importing
	cmd := &cobra.Command{
		Use:   "import FILE...",
		Short: "Append the events of files to the log",
		Long: `Append the events of files to the log, each once: one that is there already, imported or delivered, is a duplicate and changes nothing. So an import that
was ended is simply run again. FILE is - for standard input; what is compressed with gzip or zstd is read as it is. Nothing is verified: you vouch for what
is in the files. A running processor begins to apply the events at the end of the import.

Formats, found out where --format does not say:
  postern  lines that postern export wrote; times, headers and names stay as they were
  events   a line of JSON each: the body as the provider sends it
  list     JSON arrays of such bodies, bare or as pages of an API ({"object":"list","data":[...]}); that the last page says has_more is told
  csv      a row each, with names in the first; --map says which column is what, and a row without a body column is the body, as a JSON object. What
           nothing names is named by the file's name, the row, and what the file holds up to there; --name gives standard input one
  bodies   a folder, a file for each delivery; NAME.headers beside it has its headers, a line each

All but postern need --source, and name the events as the gateway would, which for some providers takes headers: --header, NAME.headers, or header.NAME in
--map. Such an event counts as received when it happened, where it says that, else when the file was changed; --received-at sets another time. It is what a
version may not lie far ahead of, so it is never later than now.

What is no event (its body cannot be the provider's, or nothing tells its type) is reported with its line, copied unchanged to FILE.bad, and makes the exit
status 1; the rest is imported. A FILE.bad that holds something else is not written over. A conflict under a key that was made from file and row makes the exit status 1 too: the columns were mapped otherwise before.`,
		Example: `  postern import events.ndjson.zst --dry-run
  postern import events.ndjson.zst
  stripe events list --limit 100 | postern import - --source stripe
  postern import orders.csv --source shop --map event_id=webhook_id,header.X-Shopify-Topic=topic,received_at=created_at,body=payload
  postern import bodies/ --source github --header 'X-GitHub-Event: issues'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s takes FILE..., got none; see %s --help", cmd.CommandPath(), cmd.CommandPath())
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&im.format, "format", "", "`format` of the files: postern, events, list, csv or bodies")
	f.StringVar(&im.source, "source", "", "`source` that everything is sent to")
	f.StringArrayVar(&im.headers, "header", nil, "`header` that every delivery came with, as 'Name: value'; may be repeated")
	f.StringToStringVar(&im.columns, "map", nil, "columns of a CSV file, as `field=column,...`: event_id, event_type, account, object_type, object_id, occurred_at, received_at, body, header.NAME")
	f.StringVar(&im.receivedAt, "received-at", "", "`time` of receipt of everything (RFC 3339)")
	f.StringVar(&im.name, "name", "", "`name` of the file in the keys of what nothing names (default: FILE's own, without its folder)")
	f.StringVar(&im.bad, "bad", "", "`file` for what is no event (default: FILE.bad)")
	reasonFlag(cmd, &im.reason)
	f.BoolVar(&im.dryRun, "dry-run", false, "say what would become of it and write nothing")
	must(cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"postern", "events", "list", "csv", "bodies"}, cobra.ShellCompDirectiveNoFileComp)))
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return im.run(cmd, c, args) }
	return cmd
}

func (im *importing) run(cmd *cobra.Command, c *cli, paths []string) error {
	order, err := im.order(paths)
	if err != nil {
		return err
	}
	if order.Sources, err = c.sources(); err != nil {
		return err
	}
	role := gatewayRole
	if im.dryRun {
		role = operatorRole
	}
	errs := cmd.ErrOrStderr()
	if order.Pool, err = c.connectAs(cmd.Context(), errs, role, 2); err != nil {
		return err
	}
	defer order.Pool.Close()
	if !im.dryRun { // before it begins: it is many transactions, and what it brings in is never without a row
		said := url.Values{"file": paths}
		if im.source != "" {
			said.Set("source", im.source)
		}
		if err := admin.Note(cmd.Context(), order.Pool, because(im.reason), "import", said.Encode()); err != nil {
			return err
		}
	}
	tell := newTeller(errs, "read", c.output == "json")
	order.Stdin, order.Progress = cmd.InOrStdin(), tell.progress
	order.Report = func(where string, why error) { tell.line(plain(where) + ": " + plain(why.Error())) }
	done, err := archive.Import(cmd.Context(), order, paths...)
	tell.end()
	if err == nil || done.Read > 0 {
		err = errors.Join(err, im.tell(cmd.OutOrStdout(), c, done))
	}
	if !im.dryRun && done.New > 0 {
		tell.line("postern: " + wantApplied(cmd.Context(), c, errs))
	}
	switch {
	case errors.Is(err, events.ErrUnavailable), err != nil && cmd.Context().Err() != nil:
		return fmt.Errorf("%w; run the same again: what is imported already is passed over", err)
	case err == nil && done.MadeConflict > 0:
		return fmt.Errorf("%d of the conflicts are rows whose keys were made from file and row: was the file imported before with another --map? --name NAME tells two imports apart", done.MadeConflict)
	case err == nil && done.Bad > 0:
		return errReported
	}
	return err
}

// wantApplied has the events that were imported applied now, and says when they are.
func wantApplied(ctx context.Context, c *cli, errs io.Writer) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second) // what was imported before Ctrl-C is applied too
	defer cancel()
	pool, err := c.connectAs(ctx, errs, operatorRole, 1)
	if err == nil {
		defer pool.Close()
		_, err = processor.Heal(ctx, pool, because("").String(), "events were imported")
	}
	if err != nil {
		return "a running processor applies the new events after about a minute, since it cannot be asked to begin now: " + err.Error()
	}
	return "a running processor begins to apply the new events now"
}

// order reads the flags.
func (im *importing) order(paths []string) (o archive.Importing, err error) {
	o = archive.Importing{Into: im.source, Format: archive.Format(im.format), Map: im.columns, DryRun: im.dryRun, BadPath: im.bad, Name: im.name, Now: time.Now()}
	known := false
	for _, f := range archive.Formats {
		known = known || f == o.Format
	}
	switch {
	case !known && im.format != "":
		return o, usagef("format %q is not known: write postern, events, list, csv or bodies", im.format)
	case im.bad != "" && len(paths) > 1:
		return o, usagef("of several files each has a file of its own for what is no event: leave out --bad, or import one after the other")
	case im.name != "" && len(paths) > 1:
		return o, usagef("--name is that of one file: import one after the other")
	}
	if err := archive.CheckMap(im.columns); err != nil {
		return o, usagef("--map: %v", err)
	}
	if len(im.headers) > 0 {
		if o.Header, err = archive.ParseHeader([]byte(strings.Join(im.headers, "\r\n"))); err != nil {
			return o, usagef("--header: %v", err)
		}
	}
	if im.receivedAt != "" {
		if o.ReceivedAt, err = time.Parse(time.RFC3339Nano, im.receivedAt); err != nil {
			return o, usagef("--received-at %q: write it as 2026-03-01T12:00:00Z", im.receivedAt)
		}
	}
	return o, nil
}

// tell says what came of it.
func (im *importing) tell(out io.Writer, c *cli, done archive.Imported) error {
	if c.output == "json" {
		return printJSON(out, done)
	}
	fresh := "new"
	if im.dryRun {
		fresh = "would be new"
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	some := func(n int64, what string) string {
		if n == 0 {
			return "0"
		}
		return number(n) + what
	}
	count := number(done.New)
	if done.AtMost {
		count = "at most " + count + ": too many for a dry run to find those that have the key of an earlier one"
	}
	if err := facts(out, "read", number(done.Read), fresh, count, "duplicate", number(done.Duplicate),
		"conflict", some(done.Conflict, ": other content under a key that is there; see postern conflicts list"), "bad", some(done.Bad, ": no events; reported and set aside")); err != nil {
		return err
	}
	if done.More {
		fmt.Fprintln(out, "The last page says has_more: there are events behind it that are in none of these files.")
	}
	if done.New > 0 && !im.dryRun {
		fmt.Fprintln(out, "A running processor applies them after a minute.")
	}
	return nil
}

// sources are what can be imported into. Where none are known, a file of ours may still name those of the log.
func (c *cli) sources() (map[string]archive.Source, error) {
	endpoints, err := c.endpoints(config.LoadSources)
	if err != nil && !errors.Is(err, errNoSources) {
		return nil, err
	}
	out := map[string]archive.Source{}
	for _, e := range endpoints {
		out[e.Source.Name] = archive.Source{Provider: e.Provider, Config: e.Source}
	}
	return out, nil
}
