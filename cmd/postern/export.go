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

// exporting are the flags of `postern export`.
type exporting struct {
	compress string
	resume   bool
}

func newExportCommand(c *cli) *cobra.Command {
	var x exporting
	cmd := &cobra.Command{
		Use:   "export FILE",
		Short: "Write stored events to a file: a line of JSON each",
		Long: `Write stored events to FILE, or to standard output where FILE is -: those that the flags choose, all if there are none, a line of JSON each, with
the exact bytes of the body. A name that ends in .gz or .zst is compressed so. What is committed when the export begins is in it, whoever appends
meanwhile.

FILE has its name when it is whole; until then it is FILE.part, and FILE.state beside it tells how far it is. An export that was ended goes on there
with --resume and the same flags. Retention does not wait for it: where a day of the log goes before it is read, the export ends with an error, and
begins anew. postern import reads the file; docs/migrating.md shows both.`,
		Example: `  postern export events.ndjson.zst
  postern export march.ndjson.gz --source stripe --since 2026-03-01 --until 2026-04-01
  postern export events.ndjson.zst --resume
  postern export - --object-type customer --object cus_1Postern | jq -r .body`,
		Args: wantArgs("FILE"),
	}
	filterFlags(cmd, admin.StoredParams)
	cmd.Flags().StringVar(&x.compress, "compress", "", "`compression`: none, gzip or zstd (default: what FILE's name says)")
	cmd.Flags().BoolVar(&x.resume, "resume", false, "go on with an export to FILE that was ended")
	must(cmd.RegisterFlagCompletionFunc("compress", cobra.FixedCompletions([]string{"none", "gzip", "zstd"}, cobra.ShellCompDirectiveNoFileComp)))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			return x.run(cmd, c, pool, args[0], filterValues(cmd, admin.StoredParams))
		})
	}
	return cmd
}

func (x *exporting) run(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, path string, values url.Values) error {
	ctx := cmd.Context()
	kind, err := x.compression(path)
	if err != nil {
		return err
	}
	if path == "-" && x.resume {
		return usagef("--resume goes on with a file; what went to standard output is not known here")
	}
	filter, err := admin.PlanExport(ctx, pool, values)
	if err != nil {
		return err
	}
	tell := newTeller(cmd.ErrOrStderr(), "exported", c.output == "json")
	e := archive.Exporting{Pool: pool, Filter: filter, Compression: kind, Progress: tell.progress}
	if path == "-" {
		done, err := archive.Stream(ctx, e, cmd.OutOrStdout())
		tell.end()
		if err == nil && done.LeftOut > 0 {
			fmt.Fprintln(cmd.ErrOrStderr(), "postern: left out", leftOut(done))
		}
		return err
	}
	words := map[string]string{}
	for name := range values {
		words[name] = values.Get(name)
	}
	done, err := archive.ToFile(ctx, e, path, words, x.resume)
	tell.end()
	if err != nil {
		return goOn(ctx, err, path, done)
	}
	if c.output == "json" {
		return printJSON(cmd.OutOrStdout(), done)
	}
	return facts(cmd.OutOrStdout(), "file", path, "events", strconv.FormatInt(done.Events, 10), "left out", leftOut(done), "bytes", strconv.FormatInt(done.Bytes, 10),
		"log read up to", strconv.FormatInt(done.Bound, 10))
}

// leftOut says what is in the log and not in the file.
func leftOut(done archive.Exported) string {
	if done.LeftOut == 0 {
		return ""
	}
	return counted(int(done.LeftOut), "event") + " whose bodies the log no longer has"
}

// goOn adds to the error of an export that something of it is done, and how the rest is got.
func goOn(ctx context.Context, err error, path string, done archive.Exported) error {
	if errors.Is(err, archive.ErrShort) || done.Bytes == 0 && ctx.Err() == nil {
		return err
	}
	return fmt.Errorf("%w; %s are in %s.part: the same command with --resume goes on", err, counted(int(done.Events), "event"), path)
}

func (x *exporting) compression(path string) (archive.Compression, error) {
	switch kind := archive.Compression(x.compress); kind {
	case "":
		return archive.CompressionOf(path), nil
	case archive.None, archive.Gzip, archive.Zstd:
		return kind, nil
	}
	return "", usagef("compression %q is not known: write none, gzip or zstd", x.compress)
}

// teller tells on standard error how many events a job is through: on a terminal always in the same line, else in a new one now and then.
type teller struct {
	out io.Writer
	// screen is out if that is a terminal.
	screen      *terminal.Screen
	did         string
	quiet       bool
	began, told time.Time
	from        int64
}

func newTeller(out io.Writer, did string, quiet bool) *teller {
	t := &teller{out: out, did: did, quiet: quiet, began: time.Now(), told: time.Now(), from: -1}
	t.screen, _ = out.(*terminal.Screen)
	return t
}

func (t *teller) progress(n int64) {
	now := time.Now()
	if t.from < 0 {
		t.from, t.began = n, now // what was done by an earlier process is no part of the rate
	}
	if t.quiet || t.screen == nil && now.Sub(t.told) < tellEvery {
		return
	}
	t.told = now
	line := fmt.Sprintf("%s %d events", t.did, n)
	if took := now.Sub(t.began).Seconds(); took > 1 {
		line += fmt.Sprintf(", %.0f/s", float64(n-t.from)/took)
	}
	if t.screen != nil {
		_ = t.screen.Line(line)
	} else {
		fmt.Fprintln(t.out, line)
	}
}

// line prints something else in between.
func (t *teller) line(text string) {
	if t.screen != nil {
		_ = t.screen.Line("")
	}
	fmt.Fprintln(t.out, text)
}

// end leaves the line.
func (t *teller) end() {
	if t.screen != nil && !t.quiet && t.from >= 0 {
		fmt.Fprintln(t.out)
	}
}
