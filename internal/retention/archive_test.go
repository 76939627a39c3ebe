package retention_test

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/archive"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// An export is never incomplete without an error: if days are dropped that it has not read, before
// it continues or meanwhile, it fails, also one to a stream, whose reader cannot notice the loss.
// Days that it has read, or that its filter excludes, may be dropped.
func TestExport_daysDropped_failsIfUnread(t *testing.T) {
	t.Parallel()
	errEnded := errors.New("ended")
	for name, c := range map[string]struct {
		// change drops days of the log when a share of the events, in percent, is in the file.
		change func(t *testing.T, b *testBundle)
		behind int
		resume bool
		stream bool
		filter func(b *testBundle) events.Filter
		short  bool
	}{
		"dropped before it continues":    {change: dropOldDays, behind: 5, resume: true, short: true},
		"dropped meanwhile":              {change: dropOldDays, behind: 5, short: true},
		"dropped meanwhile, to a stream": {change: dropOldDays, behind: 5, stream: true, short: true},
		"detached and not dropped":       {change: detachOldestDay, behind: 5, resume: true, short: true},
		"read before":                    {change: dropOldDays, behind: 85, resume: true},
		"read before, not interrupted":   {change: dropOldDays, behind: 85},
		"excluded by the filter": {change: dropOldDays, behind: 5, resume: true,
			filter: func(b *testBundle) events.Filter {
				return events.Filter{Since: events.Time(b.days[4][0])}
			}},
		"some of each day": {change: dropOldDays, behind: 5, short: true,
			filter: func(*testBundle) events.Filter { return events.Filter{ObjectType: "thing"} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, 11, 5, 60)
			e := archive.ExportParams{Pool: b.operator, Compression: archive.None, ChunkBytes: 4096}
			want := len(b.stored(t))
			if c.filter != nil {
				e.Filter = c.filter(b)
			}
			if !e.Filter.Since.IsZero() {
				want = len(b.days[4])
			}
			path := filepath.Join(t.TempDir(), "x.ndjson")
			ctx, end := context.WithCancelCause(t.Context())
			changed := false
			e.Progress = func(n int64) {
				switch {
				case changed || n < int64(want*c.behind/100):
				case c.resume:
					end(errEnded)
				default:
					c.change(t, b)
				}
				changed = changed || n >= int64(want*c.behind/100)
			}
			var done archive.ExportResult
			var err error
			if c.stream {
				done, err = archive.ExportToWriter(ctx, e, io.Discard)
			} else {
				done, err = archive.ExportToFile(ctx, e, path, nil, false)
			}
			if c.resume {
				if !errors.Is(err, context.Canceled) {
					t.Fatalf("it was not ended: %+v, %v", done, err)
				}
				c.change(t, b)
				done, err = archive.ExportToFile(t.Context(), e, path, nil, true)
			}
			switch {
			case !c.short && (err != nil || int(done.Events) != want):
				t.Errorf("%d events of %d, %v", done.Events, want, err)
			case c.short && (!errors.Is(err, archive.ErrIncomplete) || !strings.Contains(err.Error(), "events_") ||
				strings.Contains(err.Error(), ".part") == c.stream):
				t.Errorf("%d events of %d, %v", done.Events, want, err)
			}
		})
	}
}

// dropOldDays makes retention drop all but the last days.
func dropOldDays(t *testing.T, b *testBundle) {
	b.runPolicy(t, retention.Policy{Bodies: 1})
	if n := len(b.rows(t, `SELECT name FROM dropped_partitions WHERE dropped_at IS NOT NULL`)); n != len(b.days)-2 {
		t.Errorf("%d days were dropped", n)
	}
}

// detachOldestDay interrupts retention between the detaching of a day and its drop.
func detachOldestDay(t *testing.T, b *testBundle) {
	b.requestRun(t, retention.Policy{Bodies: 1})
	r := b.runner()
	r.OnStep(func(name string) error {
		if name == "drop" {
			return errCrash
		}
		return nil
	})
	if _, err := b.executeOpenRun(t, r); !errors.Is(err, errCrash) {
		t.Error(err)
	}
}

// Days are exported to the folder in the parameters, even if the processor has its own. If the
// folder does not exist, no day is dropped.
func TestRetention_folderInParams_receivesExports(t *testing.T) {
	t.Parallel()
	b := setup(t, 31, 4, 15)
	before := len(b.stored(t))
	b.folder = t.TempDir()
	requestWith := func(folder string) {
		t.Helper()
		o, err := retention.NewParams(t.Context(), b.operator, retention.Policy{Bodies: 1})
		must(t, err)
		o.Folder, o.Export = folder, true
		must(t, errOf(runs.Create(t.Context(), b.operator, runs.Request{Job: retention.Job, Params: o})))
	}
	requestWith(filepath.Join(t.TempDir(), "none"))
	if _, err := b.executeOpenRun(t, b.runner()); err == nil || !strings.Contains(err.Error(),
		"it cannot be exported") || len(b.stored(t)) != before {
		t.Fatalf("%v, %d of %d events remain", err, len(b.stored(t)), before)
	}
	b.exec(t, `UPDATE runs SET status = 'failed', ended_at = now()`)
	folder := t.TempDir()
	requestWith(folder)
	b.executeToEnd(t, b.runner())
	files, err := filepath.Glob(filepath.Join(folder, "events_*.ndjson.zst"))
	if own, _ := filepath.Glob(filepath.Join(b.folder, "*")); err != nil || len(files) != 2 || len(own) > 0 {
		t.Errorf("files %v and %v, %v", files, own, err)
	}
	lines := 0
	for _, file := range files {
		lines += strings.Count(readExport(t, file), "\n")
	}
	if left := len(b.stored(t)); lines != before-left || lines == 0 {
		t.Errorf("%d events are in files, %d of %d remain", lines, left, before)
	}
}
