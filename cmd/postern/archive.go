package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/archive"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/processor"
)

func newExportCommand(c *cli) *cobra.Command {
	cmd := command{
		use: "export FILE", short: "Write stored events to a file, one JSON line each",
		long: `Write stored events to FILE, or to standard output if FILE is -, one JSON line each,
with the exact bytes of the body. Flags select events; without flags all are written. A FILE that
ends in .gz or .zst is compressed. The export contains everything that is committed when it starts.

Until it is complete, the file is FILE.part, with its progress in FILE.state. --resume with the same
flags continues an interrupted export. Retention does not wait for it: if a day of the log is
dropped before it is read, the export ends with an error and must start again. postern import reads
the file; docs/how-to/export-and-import.md shows both.`,
		example: `  postern export events.ndjson.zst
  postern export march.ndjson.gz --source stripe --since 2026-03-01 --until 2026-04-01
  postern export events.ndjson.zst --resume
  postern export - --object-type customer --object cus_1Postern | jq -r .body`,
		params: operations.Params(operations.StoredEventParams{}),
		flags: []flag{{"compress", "`compression`: none, gzip or zstd (default: by the name of FILE)", true},
			{"resume", "continue an interrupted export to FILE", false}},
		run: runExport,
	}.build(c)
	completeFlag(cmd, "compress", "none", "gzip", "zstd")
	return cmd
}

func runExport(x *call) error {
	path, resume := x.args[0], x.has("resume")
	kind, err := compression(x.text("compress"), path)
	if err != nil {
		return err
	}
	if path == "-" && resume {
		return usagef("--resume continues a file; it cannot continue standard output")
	}
	p, err := parse[operations.StoredEventParams](x)
	if err != nil {
		return err
	}
	filter, err := p.Filter(x.ctx, x.pool)
	if err != nil {
		return err
	}
	progress := newEventProgress(x, "exported")
	e := archive.ExportParams{Pool: x.pool, Filter: filter, Compression: kind, Progress: progress.update}
	if path == "-" {
		done, err := archive.ExportToWriter(x.ctx, e, x.out)
		progress.finish()
		if err == nil && done.Skipped > 0 {
			fmt.Fprintln(x.errs, "postern: omitted", describeOmitted(done))
		}
		return err
	}
	done, err := archive.ExportToFile(x.ctx, e, path, x.values, resume)
	progress.finish()
	if err != nil {
		return explainResume(x.ctx, err, path, done)
	}
	return show(x, done, nil, func(x *call, done archive.ExportResult) error {
		return printFields(x.out, "file", path, "events", done.Events, "omitted", describeOmitted(done), "bytes",
			done.Bytes, "log read up to", done.Bound)
	})
}

// describeOmitted says how many events are in the log and not in the file.
func describeOmitted(done archive.ExportResult) string {
	if done.Skipped == 0 {
		return ""
	}
	return countOf(int(done.Skipped), "event") + " without a stored body"
}

// explainResume adds to an error how much of the export is done and how to continue it.
func explainResume(ctx context.Context, err error, path string, done archive.ExportResult) error {
	if errors.Is(err, archive.ErrIncomplete) || done.Bytes == 0 && ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("%w; %s are in %s.part: run the same command with --resume to continue", err,
		countOf(int(done.Events), "event"), path)
}

func compression(name, path string) (archive.Compression, error) {
	switch kind := archive.Compression(name); kind {
	case "":
		return archive.CompressionByName(path), nil
	case archive.None, archive.Gzip, archive.Zstd:
		return kind, nil
	}
	return "", usagef("compression %q is not known: use none, gzip or zstd", name)
}

// eventProgress shows how many events a command has processed.
type eventProgress struct {
	progress
	verb       string
	startedAt  time.Time
	startCount int64
}

func newEventProgress(x *call, verb string) *eventProgress {
	p := &eventProgress{progress: newProgress(x.errs, lineInterval, x.json()), verb: verb, startCount: -1}
	p.printedAt = time.Now()
	return p
}

func (p *eventProgress) update(n int64) {
	now := time.Now()
	if p.startCount < 0 {
		p.startCount, p.startedAt = n, now // events of an earlier process do not count in the rate
	}
	if !p.due(now) {
		return
	}
	line := fmt.Sprintf("%s %d events", p.verb, n)
	if took := now.Sub(p.startedAt).Seconds(); took > 1 {
		line += fmt.Sprintf(", %.0f/s", float64(n-p.startCount)/took)
	}
	p.show(line)
}

func newImportCommand(c *cli) *cobra.Command {
	var headers []string
	cmd := command{
		use: "import FILE...", short: "Append the events in files to the log", offline: true,
		long: `Append the events in files to the log, each once. An event that is already in the log
is a duplicate and changes nothing, so an interrupted import is simply run again. FILE is - for
standard input. Compression with gzip or zstd is detected. No signature is verified: only import
files that you trust. A running processor starts to apply the events at the end of the import.

Formats, detected if --format is not given:
  postern  lines from postern export; times, headers and ids stay unchanged
  events   one JSON line per event: the body as the provider sends it

Convert JSON arrays, pages of an API, a table or a folder of bodies first:
docs/how-to/export-and-import.md has the commands.

All formats except postern need --source. Events get their ids as in a gateway, which needs headers
for some providers: --header. The time of receipt is the event's own time, if it has one, else the
file's time of modification; --received-at sets another. It is never later than now, because a
version may not be far ahead of it.

Lines that are not events (the provider cannot have sent the body, or its type is unknown) are
reported with their number, copied unchanged to FILE.bad, and make the exit status 1; the rest is
imported. A FILE.bad with other content is not overwritten.`,
		example: `  postern import events.ndjson.zst --dry-run
  postern import events.ndjson.zst
  stripe events list --limit 100 | jq -c '.data[]' | postern import - --source stripe
  postern import issues.ndjson --source github --header 'X-GitHub-Event: issues'`,
		flags: []flag{reasonFlag, {"format", "`format` of the files: " + archive.FormatNames, true},
			{"source", "`source` of all events", true},
			{"received-at", "`time` of receipt of all events (RFC 3339)", true},
			{"name", "`name` of the file, which distinguishes events without an id (default: the name of FILE " +
				"without its folder)", true},
			{"bad", "`file` for lines that are not events (default: FILE.bad)", true},
			{"dry-run", "show the result and write nothing", false}},
		moreFlags: func(cmd *cobra.Command) {
			cmd.Flags().StringArrayVar(&headers, "header", nil,
				"`header` of every delivery, as 'Name: value'; may be repeated")
		},
		run: func(x *call) error { return runImport(x, headers) },
	}.build(c)
	completeFlag(cmd, "format", "postern", "events")
	return cmd
}

func runImport(x *call, headers []string) error {
	params, err := importOptions(x, headers)
	if err != nil {
		return err
	}
	role := gatewayRole
	if params.DryRun {
		role = operatorRole
	}
	if params.Pool, err = x.connectAs(x.ctx, x.errs, role, 2); err != nil {
		return err
	}
	defer params.Pool.Close()
	if !params.DryRun { // The audit entry is written first, because the import uses many transactions.
		target := url.Values{"file": x.args}
		if params.Target != "" {
			target.Set("source", params.Target)
		}
		if err := adminauth.WriteAudit(x.ctx, params.Pool, operator().Actor, adminauth.AuditEntry{Action: "import",
			Target: target.Encode(), Reason: x.reason()}); err != nil {
			return err
		}
	}
	progress := newEventProgress(x, "read")
	params.Stdin, params.Progress = x.in, progress.update
	params.Report = func(where string, why error) {
		progress.above(escapeControl(where) + ": " + escapeControl(why.Error()))
	}
	done, err := archive.Import(x.ctx, params, x.args...)
	progress.finish()
	if err == nil || done.Read > 0 {
		err = errors.Join(err, show(x, done, nil, printImported))
	}
	if !params.DryRun && done.Added > 0 {
		progress.above("postern: " + requestApply(x))
	}
	switch {
	case errors.Is(err, events.ErrUnavailable), err != nil && x.ctx.Err() != nil:
		return fmt.Errorf("%w; run the same command again: it skips what is imported already", err)
	case err == nil && done.Bad > 0:
		return errReported
	}
	return err
}

// requestApply asks the processors to apply the imported events now, and returns a message about
// it.
func requestApply(x *call) string {
	// after Ctrl-C, the events imported so far are applied too
	ctx, cancel := context.WithTimeout(context.WithoutCancel(x.ctx), 5*time.Second)
	defer cancel()
	pool, err := x.connectAs(ctx, x.errs, operatorRole, 1)
	if err == nil {
		defer pool.Close()
		_, err = processor.RequestRepublish(ctx, pool, operator().String(), "events were imported")
	}
	if err != nil {
		return "a running processor applies the new events after about a minute, " +
			"because it could not be asked to start now: " + err.Error()
	}
	return "a running processor starts to apply the new events now"
}

// importOptions reads the flags and the configuration of the sources. Without a configuration, a
// file of postern export may still name sources of the log.
func importOptions(x *call, headers []string) (o archive.ImportParams, err error) {
	o = archive.ImportParams{Target: x.text("source"), Format: archive.Format(x.text("format")),
		DryRun: x.has("dry-run"), BadPath: x.text("bad"), Name: x.text("name"), Now: time.Now(),
		Sources: map[string]archive.Source{}}
	switch {
	case o.Format != "" && !slices.Contains(archive.Formats, o.Format):
		return o, usagef("format %q is not known: use %s", o.Format, archive.FormatNames)
	case o.BadPath != "" && len(x.args) > 1:
		return o, usagef("--bad names one file, but several files are imported: omit --bad, or " +
			"import the files one by one")
	case o.Name != "" && len(x.args) > 1:
		return o, usagef("--name names one file: import the files one by one")
	}
	if o.Header, err = parseHeaders(headers); err != nil {
		return o, err
	}
	if at := x.text("received-at"); at != "" {
		if o.ReceivedAt, err = time.Parse(time.RFC3339Nano, at); err != nil {
			return o, usagef("--received-at %q: use the format 2026-03-01T12:00:00Z", at)
		}
	}
	endpoints, err := x.endpoints(config.LoadSources)
	if err != nil && !errors.Is(err, errNoSources) {
		return o, err
	}
	for _, e := range endpoints {
		o.Sources[e.Source.Name] = archive.Source{Provider: e.Provider, Config: e.Source}
	}
	return o, nil
}

func printImported(x *call, done archive.ImportResult) error {
	isNew, added := "new", toText(done.Added)
	if x.has("dry-run") {
		isNew = "would be new"
	}
	if done.AtMost {
		added = "at most " + added + ": too many for a dry run to find those with the id of an earlier one"
	}
	explained := func(n int64, explanation string) string {
		if n == 0 {
			return "0"
		}
		return toText(n) + explanation
	}
	if err := printFields(x.out, "read", done.Read, isNew, added, "duplicate", done.Duplicate, "conflict",
		explained(done.Conflict, ": the same event id with different content; see postern conflicts list"), "bad",
		explained(done.Bad, ": not an event; copied to the .bad file")); err != nil {
		return err
	}
	if done.Added > 0 && !x.has("dry-run") {
		fmt.Fprintln(x.out, "A running processor applies them in about a minute.")
	}
	return nil
}
