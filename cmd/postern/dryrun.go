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
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/terminal"
)

// errNoSources says that nothing is configured here of how events are read.
var errNoSources = errors.New("how sources read their events is not known here: name the configuration with --config FILE")

// endpoints are the sources as they are configured here, loaded with their secrets or without: those of --config or of variables; or else, where that is meant, the demo sources of
// the dev instance in --dir, of which nothing else is known. Errors: errNoSources.
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
		in, err := c.readInstance()
		if err != nil {
			return nil, fmt.Errorf("%w (%w)", errNoSources, err)
		}
		cfg.Sources = config.DemoSources()
		maps.DeleteFunc(cfg.Sources, func(name string, src *config.Source) bool { return in.Sources[name].Provider != src.Provider })
	}
	return cfg.Endpoints(), nil
}

// The most that a dry run shows of an object, and of a value.
const (
	shownPlaces = 20
	toldPlaces  = 1000
	shownValue  = 100
)

// dryRun shows what a replay would change, and changes nothing.
func (r *replaying) dryRun(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, order *replay.Order, expected int64) error {
	endpoints, err := c.endpoints(config.LoadSources)
	if err != nil {
		return err
	}
	trial, err := admin.NewTrial(cmd.Context(), pool, endpoints, order)
	if err != nil {
		return err
	}
	counts, err := replay.Try(cmd.Context(), pool, trial, order, 0, progress(cmd.ErrOrStderr(), expected))
	if err != nil {
		return err
	}
	return r.tellTrial(cmd.OutOrStdout(), c, trial, counts)
}

// progress tells on a terminal how many events are decided.
func progress(errs io.Writer, expected int64) func(map[string]int64) {
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

// tellTrial prints what would change of each object, then the counts: as text, or as JSON with a line for each.
func (r *replaying) tellTrial(out io.Writer, c *cli, trial *processor.Trial, counts map[string]int64) error {
	objects, fresh := 0, 0
	most := shownPlaces
	lines := json.NewEncoder(out)
	lines.SetEscapeHTML(false)
	if c.output == "json" {
		most = toldPlaces
	}
	err := trial.Differences(most, func(d processor.Difference) error {
		objects++
		if d.New {
			fresh++
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
		return lines.Encode(map[string]any{"counts": counts, "objects": objects, "new": fresh})
	}
	_, err = fmt.Fprintf(out, "%s. %s would change, %d of them new. Nothing was written.\n", inWords(replay.Job, counts), counted(objects, "object"), fresh)
	return err
}

func printDifference(out io.Writer, d processor.Difference) error {
	name := strings.Join([]string{d.Source, d.ObjectType, d.ObjectID}, " ")
	if d.Account != "" {
		name += " of " + d.Account
	}
	if d.New {
		name += " (new)"
	}
	fmt.Fprintln(out, plain(name))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, change := range d.Changes {
		fmt.Fprintf(w, "  %s\t%s -> %s\n", plain(change.Path), shown(change.Before), shown(change.After))
	}
	if d.More > 0 {
		fmt.Fprintf(w, "  and %s more\n", counted(d.More, "place"))
	}
	return w.Flush()
}

// shown is a value in a line, cut to a sensible length.
func shown(value []byte) string {
	text := []rune(plain(string(value)))
	if len(text) > shownValue {
		return string(text[:shownValue]) + "…"
	}
	return string(text)
}

// previewed is a preview in words.
func previewed(p events.Preview) string {
	if p.Events == 0 && p.From.IsZero() {
		return "No events are chosen."
	}
	about, within := "about ", "looking through"
	if p.Exact {
		about, within = "", "stored"
	}
	return fmt.Sprintf("%s%s of %s%s, %s %s to %s", about, counted(int(p.Events), "event"), about, counted(int(p.Objects), "object"), within, p.From, p.To)
}
