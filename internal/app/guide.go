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
	sources := l.opts.Config.Sources
	fmt.Fprintf(w, "\nPostern is ready.\n\n")
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		fmt.Fprintf(w, "  %-10s %s/webhooks/%s\n", sources[name].Provider, l.ingestURL(), name)
	}
	fmt.Fprintf(w, "  %-10s http://%s/api/v1/events\n", "admin", l.AdminAddr())
	fmt.Fprintf(w, "  %-10s in %s (how others reach it: %s)\n", "state", l.opts.Dir, filepath.Join(l.opts.Dir, config.InstanceFile))
	if l.moved != "" {
		fmt.Fprintf(w, "  %-10s in %s, since PostgreSQL's account cannot enter %s\n", "database", l.moved, l.opts.Dir)
	}
	at := ""
	if l.opts.Dir != DefaultDir {
		at = " --dir " + l.opts.Dir
	}
	fmt.Fprintf(w, "\nTry in another terminal:\n\n")
	tellSend(w, l.opts.Config, at)
	fmt.Fprintf(w, "  go run ./cmd/postern objects list%s\n\nCtrl-C stops it; the state stays.\n\n", at)
}

// tellSend prints a delivery to try: to a source whose secret `send` finds by itself, if there is one.
func tellSend(w io.Writer, cfg *config.Config, at string) {
	known := cfg.InstanceSources()
	names := slices.SortedFunc(maps.Keys(known), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(known[a]), rank(known[b])), cmp.Compare(a, b))
	})
	if len(names) == 0 {
		return
	}
	name := names[0]
	kind := known[name].Provider
	line := "send " + kind + " " + sampleType(kind)
	if name != kind {
		line += " --source " + name
	}
	if known[name].Secret == "" {
		file := cmp.Or(cfg.Sources[name].Secrets[0].File, "FILE")
		line += " --secret-file " + file + at + "    # " + file + ": where the secret of source " + name + " is; it is not told here"
	} else {
		line += at
	}
	fmt.Fprintf(w, "  go run ./cmd/postern %s\n", line)
}

// rank is lower for a source that is easier to send to.
func rank(src config.InstanceSource) int {
	switch {
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
