package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/archive"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
)

// importFlags are the flags of `postern import`.
type importFlags struct {
	format, source, receivedAt, badFile, name, reason string
	headers                                           []string
	dryRun                                            bool
}

func newImportCommand(c *cli) *cobra.Command {
	var im importFlags
	cmd := &cobra.Command{
		Use:   "import FILE...",
		Short: "Append the events in files to the log",
		Long: `Append the events in files to the log, each once. An event that is already in the log
is a duplicate and changes nothing, so an interrupted import is simply run again. FILE is - for
standard input. Compression with gzip or zstd is detected. No signature is verified: only import
files that you trust. A running processor starts to apply the events at the end of the import.

Formats, detected if --format is not given:
  postern  lines from postern export; times, headers and ids stay unchanged
  events   one JSON line per event: the body as the provider sends it
  list     JSON arrays of such bodies, plain or as pages of an API ({"object":"list","data":[...]}); a has_more on the
           last page is reported

Convert a table or a folder of bodies first: docs/migrating.md has the commands.

All formats except postern need --source. Events get their ids as in a gateway, which needs headers
for some providers: --header. The time of receipt is the event's own time, if it has one, else the
file's time of modification; --received-at sets another. It is never later than now, because a
version may not be far ahead of it.

Lines that are not events (the provider cannot have sent the body, or its type is unknown) are
reported with their number, copied unchanged to FILE.bad, and make the exit status 1; the rest is
imported. A FILE.bad with other content is not overwritten.`,
		Example: `  postern import events.ndjson.zst --dry-run
  postern import events.ndjson.zst
  stripe events list --limit 100 | postern import - --source stripe
  postern import issues.ndjson --source github --header 'X-GitHub-Event: issues'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s takes FILE..., got none; see %s --help", cmd.CommandPath(), cmd.CommandPath())
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&im.format, "format", "", "`format` of the files: "+archive.FormatNames)
	f.StringVar(&im.source, "source", "", "`source` of all events")
	f.StringArrayVar(&im.headers, "header", nil, "`header` of every delivery, as 'Name: value'; may be repeated")
	f.StringVar(&im.receivedAt, "received-at", "", "`time` of receipt of all events (RFC 3339)")
	f.StringVar(&im.name, "name", "",
		"`name` of the file, which distinguishes events without an id (default: the name of FILE without its folder)")
	f.StringVar(&im.badFile, "bad", "", "`file` for lines that are not events (default: FILE.bad)")
	addReasonFlag(cmd, &im.reason)
	f.BoolVar(&im.dryRun, "dry-run", false, "show the result and write nothing")
	must(cmd.RegisterFlagCompletionFunc("format",
		cobra.FixedCompletions([]string{"postern", "events", "list"}, cobra.ShellCompDirectiveNoFileComp)))
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return im.run(cmd, c, args) }
	return cmd
}

func (im *importFlags) run(cmd *cobra.Command, c *cli, paths []string) error {
	params, err := im.options(paths)
	if err != nil {
		return err
	}
	if params.Sources, err = c.importSources(); err != nil {
		return err
	}
	role := gatewayRole
	if im.dryRun {
		role = operatorRole
	}
	errs := cmd.ErrOrStderr()
	if params.Pool, err = c.connectAs(cmd.Context(), errs, role, 2); err != nil {
		return err
	}
	defer params.Pool.Close()
	if !im.dryRun { // The audit entry is written first, because the import uses many transactions.
		target := url.Values{"file": paths}
		if im.source != "" {
			target.Set("source", im.source)
		}
		if err := admin.RecordAction(cmd.Context(), params.Pool, operatorWithReason(im.reason), "import",
			target.Encode()); err != nil {
			return err
		}
	}
	progress := newProgressLine(errs, "read", c.output == "json")
	params.Stdin, params.Progress = cmd.InOrStdin(), progress.update
	params.Report = func(where string, why error) {
		progress.printAbove(escapeControl(where) + ": " + escapeControl(why.Error()))
	}
	done, err := archive.Import(cmd.Context(), params, paths...)
	progress.finish()
	if err == nil || done.Read > 0 {
		err = errors.Join(err, im.printResult(cmd.OutOrStdout(), c, done))
	}
	if !im.dryRun && done.Added > 0 {
		progress.printAbove("postern: " + requestApply(cmd.Context(), c, errs))
	}
	switch {
	case errors.Is(err, events.ErrUnavailable), err != nil && cmd.Context().Err() != nil:
		return fmt.Errorf("%w; run the same command again: it skips what is imported already", err)
	case err == nil && done.Bad > 0:
		return errReported
	}
	return err
}

// requestApply asks the processors to apply the imported events now, and returns a message about
// it.
func requestApply(ctx context.Context, c *cli, errs io.Writer) string {
	// after Ctrl-C, the events imported so far are applied too
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	pool, err := c.connectAs(ctx, errs, operatorRole, 1)
	if err == nil {
		defer pool.Close()
		_, err = processor.RequestRepublish(ctx, pool, operatorWithReason("").String(), "events were imported")
	}
	if err != nil {
		return "a running processor applies the new events after about a minute, " +
			"because it could not be asked to start now: " + err.Error()
	}
	return "a running processor starts to apply the new events now"
}

// options reads the flags.
func (im *importFlags) options(paths []string) (o archive.ImportParams, err error) {
	o = archive.ImportParams{Target: im.source, Format: archive.Format(im.format), DryRun: im.dryRun,
		BadPath: im.badFile, Name: im.name, Now: time.Now()}
	switch {
	case im.format != "" && !slices.Contains(archive.Formats, o.Format):
		return o, usagef("format %q is not known: use %s", im.format, archive.FormatNames)
	case im.badFile != "" && len(paths) > 1:
		return o, usagef("--bad names one file, but several files are imported: omit --bad, or " +
			"import the files one by one")
	case im.name != "" && len(paths) > 1:
		return o, usagef("--name names one file: import the files one by one")
	}
	if o.Header, err = parseHeaders(im.headers); err != nil {
		return o, err
	}
	if im.receivedAt != "" {
		if o.ReceivedAt, err = time.Parse(time.RFC3339Nano, im.receivedAt); err != nil {
			return o, usagef("--received-at %q: use the format 2026-03-01T12:00:00Z", im.receivedAt)
		}
	}
	return o, nil
}

// printResult prints the result of the import.
func (im *importFlags) printResult(out io.Writer, c *cli, done archive.ImportResult) error {
	if c.output == "json" {
		return printJSON(out, done)
	}
	newLabel := "new"
	if im.dryRun {
		newLabel = "would be new"
	}
	format := func(n int64) string { return strconv.FormatInt(n, 10) }
	countWith := func(n int64, explanation string) string {
		if n == 0 {
			return "0"
		}
		return format(n) + explanation
	}
	count := format(done.Added)
	if done.AtMost {
		count = "at most " + count + ": too many for a dry run to find those with the id of an earlier one"
	}
	if err := printFields(out, "read", format(done.Read), newLabel, count, "duplicate", format(done.Duplicate),
		"conflict", countWith(done.Conflict, ": the same event id with different content; see postern conflicts list"),
		"bad", countWith(done.Bad, ": not an event; copied to the .bad file")); err != nil {
		return err
	}
	if done.More {
		fmt.Fprintln(out,
			"The last page says has_more: the provider has more events, which are in none of these files.")
	}
	if done.Added > 0 && !im.dryRun {
		fmt.Fprintln(out, "A running processor applies them in about a minute.")
	}
	return nil
}

// importSources returns the sources that events can be imported into. Without a configuration, a
// file of postern export may still name sources of the log.
func (c *cli) importSources() (map[string]archive.Source, error) {
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
