package app

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/console"
	"github.com/postern-gateway/postern/internal/provider/all"
)

// defaultDir is the default folder of dev's state.
const defaultDir = ".postern"

// printUsage prints how to use the instance.
func (l *Local) printUsage() {
	if l.opts.Out == nil {
		return
	}
	w := &strings.Builder{} // printed at once, so that no line of the log is inside
	defer func() { fmt.Fprint(l.opts.Out, w) }()
	fmt.Fprintf(w, "\nPostern is ready.\n\n")
	rows := l.sourceRows()
	if enabled := l.Config.Console.Enabled; enabled == nil || *enabled {
		rows = append(rows, []string{"console", "http://" + l.AdminAddr() + console.Prefix})
	} else {
		rows = append(rows, []string{"admin", "http://" + l.AdminAddr() + "/api/v1/events"})
	}
	rows = append(rows, []string{"state", fmt.Sprintf("in %s (addresses for other commands: %s)", l.opts.Dir,
		filepath.Join(l.opts.Dir, config.InstanceFile))})
	if l.databaseDir != "" {
		rows = append(rows, []string{"database", fmt.Sprintf("in %s, because PostgreSQL's account cannot enter %s",
			l.databaseDir, l.opts.Dir)})
	}
	printRows(w, rows)
	at := ""
	if l.opts.Dir != defaultDir {
		at = " --dir " + l.opts.Dir
	}
	fmt.Fprintf(w, "\nTry in another terminal:\n\n")
	printSendExample(w, l.opts.Config, l.opts.File, l.opts.Dir)
	fmt.Fprintf(w, "  %s objects list%s\n\nCtrl-C stops it; the state is kept.\n\n", program(), at)
}

// sourceRows lists the sources with their addresses. If any source has another name than its
// provider, it adds the providers.
func (l *Local) sourceRows() [][]string {
	sources := l.opts.Config.Sources
	allNamedByProvider := true
	for name, src := range sources {
		allNamedByProvider = allNamedByProvider && name == src.Provider
	}
	var rows [][]string
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		row := []string{name, l.ingestURL() + "/webhooks/" + name}
		if !allNamedByProvider {
			row[1] += "  (" + sources[name].Provider + ")"
		}
		rows = append(rows, row)
	}
	return rows
}

// printRows prints pairs in two columns.
func printRows(w io.Writer, rows [][]string) {
	width := 0
	for _, row := range rows {
		width = max(width, len(row[0]))
	}
	for _, row := range rows {
		fmt.Fprintf(w, "  %-*s  %s\n", width, row[0], row[1])
	}
}

// printSendExample prints an example of the command `send`, if possible for a source whose secret
// the command can read. `send` reads addresses from the instance file, and secrets and providers
// from the configuration file if there is one.
func printSendExample(w io.Writer, cfg *config.Config, file, dir string) {
	known := cfg.InstanceSources()
	names := slices.SortedFunc(maps.Keys(known), func(a, b string) int {
		return cmp.Or(cmp.Compare(sourceRank(known[a], describesProvider(cfg, a) && file != ""), sourceRank(known[b],
			describesProvider(cfg, b) && file != "")), cmp.Compare(a, b))
	})
	if len(names) == 0 {
		return
	}
	name := names[0]
	kind := known[name].Provider
	line, at, note := "send "+kind+" "+sampleType(kind), "", ""
	if file != "" {
		at = " --config " + file + " --dir " + dir
		if describesProvider(cfg, name) {
			line, note = "send "+kind+" TYPE --data FILE", "    # FILE: a body in the format of "+name+"'s sender"
		}
	} else if dir != defaultDir {
		at = " --dir " + dir
	}
	if name != kind {
		line += " --source " + name
	}
	if secrets := cfg.Sources[name].Secrets; known[name].Secret == "" &&
		(file == "" || secrets[0].Name == config.ReplacedSecret) {
		from := cmp.Or(secrets[0].File, "FILE")
		line += " --secret-file " + from
		note = "    # " + from + ": contains the secret of source " + name + ", which is not printed here"
	}
	fmt.Fprintf(w, "  %s %s%s%s\n", program(), line, at, note)
}

// program returns the command as it was started, which works in another terminal too.
func program() string {
	if filepath.Base(os.Args[0]) == "postern" {
		return os.Args[0]
	}
	return "postern"
}

// describesProvider reports whether the source describes its own provider.
func describesProvider(cfg *config.Config, source string) bool {
	return slices.ContainsFunc(cfg.Endpoints(), func(e config.Endpoint) bool {
		return e.Source.Name == source && e.IsCustomized
	})
}

// sourceRank is lower for a source that is easier to send to.
func sourceRank(src config.InstanceSource, described bool) int {
	switch {
	case described: // it needs a body
		return 3
	case src.Secret == "":
		return 2
	case src.Provider != "stripe": // the provider of the README's example
		return 1
	}
	return 0
}

// sampleType returns a sample type of a provider for the example.
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
