package main

import (
	"fmt"
	"io/fs"
	"maps"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report prints figures of the run and the broken promises.
func (r *run) report(c *checker) {
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	s := r.senders
	fmt.Fprintf(w, "deliveries\t%d\n", s.deliveries.Load())
	fmt.Fprintf(w, "acknowledged\t%d\tof them spooled\t%d\n", s.acknowledged.Load(), s.spooled.Load())
	fmt.Fprintf(w, "rejected permanently\t%d\n", s.refused.Load())
	fmt.Fprintf(w, "retried\t%d\n", s.retries.Load())
	fmt.Fprintf(w, "events, objects\t%d\t\t%d\n", len(c.log), len(c.model.rows))
	fmt.Fprintf(w, "reads of the mirror\t%d\tof all objects\t%d\tfailed\t%d\n", r.watcher.reads.Load(),
		r.watcher.passes.Load(), r.watcher.missed.Load())
	for _, s := range r.steps {
		fmt.Fprintf(w, "to %s\t%s\n", s.what, s.took.Round(100*time.Millisecond))
	}
	var own runtime.MemStats
	runtime.ReadMemStats(&own)
	fmt.Fprintf(w, "memory of this program\t%d MiB\n", own.Sys>>20)
	for name, n := range r.ended() {
		fmt.Fprintf(w, "unexpected ends of %s\t%d\n", name, n)
	}
	for _, d := range r.site.Daemons() {
		if n := d.LateStops.Load(); n > 0 {
			fmt.Fprintf(w, "stops of %s that took too long\t%d\n", d.Name, n)
		}
	}
	fmt.Fprintf(w, "faults\t%d\tlongest time without a 2xx\n", len(r.happened))
	count, longest := map[string]int{}, map[string]time.Duration{}
	for _, h := range r.happened {
		count[h.kind]++
		longest[h.kind] = max(longest[h.kind], s.silence.longest(h.when))
	}
	for _, kind := range slices.Sorted(maps.Keys(count)) {
		fmt.Fprintf(w, "  %s\t%d\t%s\n", kind, count[kind], longest[kind].Round(time.Millisecond))
	}
	for _, what := range promises {
		fmt.Fprintf(w, "%s\t%d\n", what, c.counts[what])
	}
}

// logs is the file system of a site with its logs and its journal only.
type logs struct{ fs.FS }

// ReadDir omits data and sockets.
func (l logs) ReadDir(name string) ([]fs.DirEntry, error) {
	all, err := fs.ReadDir(l.FS, name)
	return slices.DeleteFunc(all, func(e fs.DirEntry) bool {
		return !strings.HasSuffix(e.Name(), ".log") && e.Name() != "journal" &&
			!(e.IsDir() && strings.HasPrefix(e.Name(), "postgres"))
	}), err
}
