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

// report prints what happened and what was broken.
func (r *run) report(c *checker) {
	w := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	s := r.senders
	fmt.Fprintf(w, "deliveries\t%d\n", s.deliveries.Load())
	fmt.Fprintf(w, "acknowledged\t%d\tof them from a spool\t%d\n", s.acknowledged.Load(), s.spooled.Load())
	fmt.Fprintf(w, "refused for good\t%d\n", s.refused.Load())
	fmt.Fprintf(w, "tried again\t%d\n", s.retries.Load())
	fmt.Fprintf(w, "events, objects\t%d\t\t%d\n", len(c.log), len(c.model.rows))
	fmt.Fprintf(w, "looks at the mirror\t%d\tat all objects\t%d\tthat found no database\t%d\n", r.watcher.looks.Load(),
		r.watcher.circles.Load(), r.watcher.missed.Load())
	for _, s := range r.steps {
		fmt.Fprintf(w, "to %s\t%s\n", s.what, s.took.Round(100*time.Millisecond))
	}
	var own runtime.MemStats
	runtime.ReadMemStats(&own)
	fmt.Fprintf(w, "memory of this program\t%d MiB\n", own.Sys>>20)
	for name, n := range r.ended() {
		fmt.Fprintf(w, "%s had ended by itself\t%d\n", name, n)
	}
	for _, d := range r.site.Daemons() {
		if n := d.LateStops.Load(); n > 0 {
			fmt.Fprintf(w, "%s had given up a stop after its time\t%d\n", d.Name, n)
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

// logs are the files of a site that tell what happened; the rest is data.
type logs struct{ fs.FS }

// ReadDir leaves out data and sockets.
func (l logs) ReadDir(name string) ([]fs.DirEntry, error) {
	all, err := fs.ReadDir(l.FS, name)
	return slices.DeleteFunc(all, func(e fs.DirEntry) bool {
		return !strings.HasSuffix(e.Name(), ".log") && e.Name() != "journal" &&
			!(e.IsDir() && strings.HasPrefix(e.Name(), "postgres"))
	}), err
}
