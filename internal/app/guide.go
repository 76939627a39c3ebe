package app

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider/all"
)

// DefaultDir is where dev keeps its state.
const DefaultDir = ".postern"

// tell prints how to use the instance.
func (l *Local) tell() {
	w := l.opts.Out
	if w == nil {
		return
	}
	fmt.Fprintf(w, "\nPostern is ready.\n\n")
	rows := l.sourceRows()
	rows = append(rows, []string{"admin", "http://" + l.AdminAddr() + "/api/v1/events"})
	rows = append(rows, []string{"state", fmt.Sprintf("in %s (how others reach it: %s)", l.opts.Dir, filepath.Join(l.opts.Dir, config.InstanceFile))})
	if l.moved != "" {
		rows = append(rows, []string{"database", fmt.Sprintf("in %s, since PostgreSQL's account cannot enter %s", l.moved, l.opts.Dir)})
	}
	tellRows(w, rows)
	at := ""
	if l.opts.Dir != DefaultDir {
		at = " --dir " + l.opts.Dir
	}
	fmt.Fprintf(w, "\nTry in another terminal:\n\n")
	tellSend(w, l.opts.Config, l.opts.File, l.opts.Dir)
	fmt.Fprintf(w, "  go run ./cmd/postern objects list%s\n\nCtrl-C stops it; the state stays.\n\n", at)
}

// sourceRows are the sources with their addresses, and with their providers where a name does not say it.
func (l *Local) sourceRows() [][]string {
	sources := l.opts.Config.Sources
	named := true
	for name, src := range sources {
		named = named && name == src.Provider
	}
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		row := []string{name, l.ingestURL() + "/webhooks/" + name}
		if !named {
			row[1] += "  (" + sources[name].Provider + ")"
		}
		rows = append(rows, row)
	}
	return rows
}

// tellRows prints pairs in two columns.
func tellRows(w io.Writer, rows [][]string) {
	width := 0
	for _, row := range rows {
		width = max(width, len(row[0]))
	}
	for _, row := range rows {
		fmt.Fprintf(w, "  %-*s  %s\n", width, row[0], row[1])
	}
}

// tellSend prints a delivery to try: to a source whose secret `send` finds by itself, if there is one. What a file says of a source, its
// secrets and its sender, `send` reads there; where the instance listens, in its folder.
func tellSend(w io.Writer, cfg *config.Config, file, dir string) {
	known := cfg.InstanceSources()
	names := slices.SortedFunc(maps.Keys(known), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(known[a], own(cfg, a) && file != ""), rank(known[b], own(cfg, b) && file != "")), cmp.Compare(a, b))
	})
	if len(names) == 0 {
		return
	}
	name := names[0]
	kind := known[name].Provider
	line, at, note := "send "+kind+" "+sampleType(kind), "", ""
	if file != "" {
		at = " --config " + file + " --dir " + dir
		if own(cfg, name) {
			line, note = "send "+kind+" TYPE --data FILE", "    # FILE: a body as the sender of "+name+" sends it"
		}
	} else if dir != DefaultDir {
		at = " --dir " + dir
	}
	if name != kind {
		line += " --source " + name
	}
	if secrets := cfg.Sources[name].Secrets; known[name].Secret == "" && (file == "" || secrets[0].Name == config.ReplacedSecret) {
		from := cmp.Or(secrets[0].File, "FILE")
		line += " --secret-file " + from
		note = "    # " + from + ": where the secret of source " + name + " is; it is not told here"
	}
	fmt.Fprintf(w, "  go run ./cmd/postern %s%s%s\n", line, at, note)
}

// own: the source says itself how its sender signs or names events.
func own(cfg *config.Config, source string) bool {
	return slices.ContainsFunc(cfg.Endpoints(), func(e config.Endpoint) bool { return e.Source.Name == source && e.Own })
}

// rank is lower for a source that is easier to send to.
func rank(src config.InstanceSource, own bool) int {
	switch {
	case own: // a body is needed
		return 3
	case src.Secret == "":
		return 2
	case src.Provider != "stripe": // the one that the README tells of
		return 1
	}
	return 0
}

// sampleType is a sample of a provider to begin with.
func sampleType(name string) string {
	p, ok := all.Named(name)
	if !ok || len(p.Samples()) == 0 {
		return "TYPE"
	}
	first := p.Samples()[0].Type
	for _, s := range p.Samples() {
		if s.Type == "invoice.paid" {
			return s.Type
		}
	}
	return first
}
