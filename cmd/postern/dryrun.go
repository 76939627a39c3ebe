package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"text/tabwriter"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/terminal"
)

// errNoSources means that this command has no configuration of the sources, which it needs to read
// events.
var errNoSources = errors.New("the configuration of the sources is not known here: name it with --config FILE")

// endpoints returns the sources of --config or of the environment, with or without their secrets,
// depending on load. If neither names an instance, it returns the demo sources of the dev instance
// in --dir; others are not known. Errors: errNoSources.
func (c *cli) endpoints(load func(path string) (*config.Config, error)) ([]config.Endpoint, error) {
	cfg, err := load(c.config)
	if err != nil {
		return nil, err
	}
	switch {
	case c.config != "" || len(cfg.Sources) > 0:
	case cfg.Database.URL != "":
		return nil, errNoSources
	default:
		in, err := c.readInstanceFile()
		if err != nil {
			return nil, fmt.Errorf("%w (%w)", errNoSources, err)
		}
		cfg.Sources = config.DemoSources()
		maps.DeleteFunc(cfg.Sources,
			func(name string, src *config.Source) bool { return in.Sources[name].Provider != src.Provider })
	}
	return cfg.Endpoints(), nil
}

// The maximum number of paths that a dry run shows of an object, and the maximum length of a value.
const (
	maxTextPaths   = 20
	maxJSONPaths   = 1000
	maxValueLength = 100
)

// dryRun shows what a replay would change, and changes nothing.
func (r *replayFlags) dryRun(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, params *replay.Params,
	expected int64) error {
	endpoints, err := c.endpoints(config.LoadSources)
	if err != nil {
		return err
	}
	dry, err := admin.NewDryRun(cmd.Context(), pool, endpoints, params)
	if err != nil {
		return err
	}
	counts, err := replay.DryRun(cmd.Context(), pool, dry, params, 0, dryRunProgress(cmd.ErrOrStderr(), expected))
	if err != nil {
		return err
	}
	return r.printDryRun(cmd.OutOrStdout(), c, dry, counts)
}

// dryRunProgress shows on a terminal how many events are decided.
func dryRunProgress(errs io.Writer, expected int64) func(map[string]int64) {
	screen, ok := errs.(*terminal.Screen)
	if !ok {
		return func(map[string]int64) {}
	}
	return func(counts map[string]int64) {
		line := ""
		if done := counts[replay.Processed]; done < expected {
			line = fmt.Sprintf("%d of about %d events decided", done, expected)
		}
		_ = screen.Line(line)
	}
}

// printDryRun prints the changes of each object and then the counts, as text or as one JSON
// document per line.
func (r *replayFlags) printDryRun(out io.Writer, c *cli, dry *apply.DryRun, counts map[string]int64) error {
	objects, created := 0, 0
	most := maxTextPaths
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	if c.output == "json" {
		most = maxJSONPaths
	}
	err := dry.Differences(most, func(d apply.Difference) error {
		objects++
		if d.New {
			created++
		}
		if c.output == "json" {
			return lines.Encode(d)
		}
		return printDifference(out, d)
	})
	if err != nil {
		return err
	}
	if c.output == "json" {
		return lines.Encode(map[string]any{"counts": counts, "objects": objects, "new": created})
	}
	_, err = fmt.Fprintf(out, "%s. %s would change, %d of them new. Nothing was written.\n",
		describeCounts(replay.Job, counts), countOf(objects, "object"), created)
	return err
}

func printDifference(out io.Writer, d apply.Difference) error {
	name := strings.Join([]string{d.Source, d.ObjectType, d.ObjectID}, " ")
	if d.Account != "" {
		name += " of " + d.Account
	}
	if d.New {
		name += " (new)"
	}
	fmt.Fprintln(out, escapeControl(name))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, change := range d.Changes {
		fmt.Fprintf(w, "  %s\t%s -> %s\n", escapeControl(change.Path), shortValue(change.Before),
			shortValue(change.After))
	}
	if d.More > 0 {
		fmt.Fprintf(w, "  and %s more\n", countOf(d.More, "path"))
	}
	return w.Flush()
}

// shortValue returns a value as one line of limited length.
func shortValue(value []byte) string {
	text := []rune(escapeControl(string(value)))
	if len(text) > maxValueLength {
		return string(text[:maxValueLength]) + "…"
	}
	return string(text)
}

// describePreview describes a preview.
func describePreview(p events.Preview) string {
	if p.Events == 0 && p.From.IsZero() {
		return "No events are selected."
	}
	about, within := "about ", "searching"
	if p.ExactCounts {
		about, within = "", "stored"
	}
	return fmt.Sprintf("%s%s of %s%s, %s %s to %s", about, countOf(int(p.Events), "event"), about,
		countOf(int(p.Objects), "object"), within, p.From, p.To)
}
