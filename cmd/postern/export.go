package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/archive"
	"github.com/postern-gateway/postern/internal/terminal"
)

// exportFlags are the flags of `postern export`.
type exportFlags struct {
	compress string
	resume   bool
}

func newExportCommand(c *cli) *cobra.Command {
	var x exportFlags
	cmd := &cobra.Command{
		Use:   "export FILE",
		Short: "Write stored events to a file, one JSON line each",
		Long: `Write stored events to FILE, or to standard output if FILE is -, one JSON line each,
with the exact bytes of the body. Flags select events; without flags all are written. A FILE that
ends in .gz or .zst is compressed. The export contains everything that is committed when it starts.

Until it is complete, the file is FILE.part, with its progress in FILE.state. --resume with the same
flags continues an interrupted export. Retention does not wait for it: if a day of the log is
dropped before it is read, the export ends with an error and must start again. postern import reads
the file; docs/migrating.md shows both.`,
		Example: `  postern export events.ndjson.zst
  postern export march.ndjson.gz --source stripe --since 2026-03-01 --until 2026-04-01
  postern export events.ndjson.zst --resume
  postern export - --object-type customer --object cus_1Postern | jq -r .body`,
		Args: wantArgs("FILE"),
	}
	filterFlags(cmd, admin.StoredEventParams)
	cmd.Flags().StringVar(&x.compress, "compress", "",
		"`compression`: none, gzip or zstd (default: by the name of FILE)")
	cmd.Flags().BoolVar(&x.resume, "resume", false, "continue an interrupted export to FILE")
	must(cmd.RegisterFlagCompletionFunc("compress", cobra.FixedCompletions([]string{"none", "gzip", "zstd"},
		cobra.ShellCompDirectiveNoFileComp)))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			return x.run(cmd, c, pool, args[0], filterValues(cmd, admin.StoredEventParams))
		})
	}
	return cmd
}

func (x *exportFlags) run(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, path string, values url.Values) error {
	ctx := cmd.Context()
	kind, err := x.compression(path)
	if err != nil {
		return err
	}
	if path == "-" && x.resume {
		return usagef("--resume continues a file; it cannot continue standard output")
	}
	filter, err := admin.ParseExportFilter(ctx, pool, values)
	if err != nil {
		return err
	}
	progress := newProgressLine(cmd.ErrOrStderr(), "exported", c.output == "json")
	e := archive.ExportParams{Pool: pool, Filter: filter, Compression: kind, Progress: progress.update}
	if path == "-" {
		done, err := archive.ExportToWriter(ctx, e, cmd.OutOrStdout())
		progress.finish()
		if err == nil && done.Skipped > 0 {
			fmt.Fprintln(cmd.ErrOrStderr(), "postern: omitted", describeOmitted(done))
		}
		return err
	}
	params := map[string]string{}
	for name := range values {
		params[name] = values.Get(name)
	}
	done, err := archive.ExportToFile(ctx, e, path, params, x.resume)
	progress.finish()
	if err != nil {
		return explainResume(ctx, err, path, done)
	}
	if c.output == "json" {
		return printJSON(cmd.OutOrStdout(), done)
	}
	return printFields(cmd.OutOrStdout(), "file", path, "events", strconv.FormatInt(done.Events, 10),
		"omitted", describeOmitted(done), "bytes", strconv.FormatInt(done.Bytes, 10),
		"log read up to", strconv.FormatInt(done.Bound, 10))
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

func (x *exportFlags) compression(path string) (archive.Compression, error) {
	switch kind := archive.Compression(x.compress); kind {
	case "":
		return archive.CompressionByName(path), nil
	case archive.None, archive.Gzip, archive.Zstd:
		return kind, nil
	}
	return "", usagef("compression %q is not known: use none, gzip or zstd", x.compress)
}

// progressLine prints on standard error how many events a command has processed. On a terminal it
// updates one line, otherwise it prints a new line at an interval.
type progressLine struct {
	out io.Writer
	// screen is out if out is a terminal.
	screen               *terminal.Screen
	verb                 string
	quiet                bool
	startedAt, printedAt time.Time
	startCount           int64
}

func newProgressLine(out io.Writer, verb string, quiet bool) *progressLine {
	t := &progressLine{out: out, verb: verb, quiet: quiet, startedAt: time.Now(), printedAt: time.Now(), startCount: -1}
	t.screen, _ = out.(*terminal.Screen)
	return t
}

func (t *progressLine) update(n int64) {
	now := time.Now()
	if t.startCount < 0 {
		t.startCount, t.startedAt = n, now // events of an earlier process do not count in the rate
	}
	if t.quiet || t.screen == nil && now.Sub(t.printedAt) < lineInterval {
		return
	}
	t.printedAt = now
	line := fmt.Sprintf("%s %d events", t.verb, n)
	if took := now.Sub(t.startedAt).Seconds(); took > 1 {
		line += fmt.Sprintf(", %.0f/s", float64(n-t.startCount)/took)
	}
	if t.screen != nil {
		_ = t.screen.Line(line)
	} else {
		fmt.Fprintln(t.out, line)
	}
}

// printAbove prints another line between updates.
func (t *progressLine) printAbove(text string) {
	if t.screen != nil {
		_ = t.screen.Line("")
	}
	fmt.Fprintln(t.out, text)
}

// finish ends the line on a terminal.
func (t *progressLine) finish() {
	if t.screen != nil && !t.quiet && t.startCount >= 0 {
		fmt.Fprintln(t.out)
	}
}
