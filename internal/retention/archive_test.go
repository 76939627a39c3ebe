package retention_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/archive"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// An export is never silently short: where days go that it has not read, before it goes on or while it is under way, it ends with an error.
// Days that it had read, or does not want, may go.
func TestExportAcrossRetention(t *testing.T) {
	t.Parallel()
	errEnded := errors.New("ended")
	for name, c := range map[string]struct {
		// spoil takes days out of the log, when a share of the events, in percent, is in the file.
		spoil  func(t *testing.T, b *testBundle)
		behind int
		resume bool
		filter func(b *testBundle) events.Filter
		short  bool
	}{
		"dropped before it goes on": {spoil: dropped, behind: 5, resume: true, short: true},
		"dropped meanwhile":         {spoil: dropped, behind: 5, short: true},
		"detached and not dropped":  {spoil: detached, behind: 5, resume: true, short: true},
		"read already":              {spoil: dropped, behind: 85, resume: true},
		"read already, and no end":  {spoil: dropped, behind: 85},
		"not wanted": {spoil: dropped, behind: 5, resume: true, filter: func(b *testBundle) events.Filter {
			return events.Filter{Since: events.Time(b.days[4][0])}
		}},
		"some of each day": {spoil: dropped, behind: 5, short: true, filter: func(*testBundle) events.Filter { return events.Filter{ObjectType: "thing"} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, 11, 5, 60)
			e := archive.Exporting{Pool: b.operator, Compression: archive.None, ChunkBytes: 4096}
			want := len(b.stored(t))
			if c.filter != nil {
				e.Filter = c.filter(b)
			}
			if !e.Filter.Since.IsZero() {
				want = len(b.days[4])
			}
			path := filepath.Join(t.TempDir(), "x.ndjson")
			ctx, end := context.WithCancelCause(t.Context())
			spoilt := false
			e.Progress = func(n int64) {
				switch {
				case spoilt || n < int64(want*c.behind/100):
				case c.resume:
					end(errEnded)
				default:
					c.spoil(t, b)
				}
				spoilt = spoilt || n >= int64(want*c.behind/100)
			}
			done, err := archive.ToFile(ctx, e, path, nil, false)
			if c.resume {
				if !errors.Is(err, context.Canceled) {
					t.Fatalf("it was not ended: %+v, %v", done, err)
				}
				c.spoil(t, b)
				done, err = archive.ToFile(t.Context(), e, path, nil, true)
			}
			switch {
			case !c.short && (err != nil || int(done.Events) != want):
				t.Errorf("%d events of %d, %v", done.Events, want, err)
			case c.short && (!errors.Is(err, archive.ErrShort) || !strings.Contains(err.Error(), "events_") || !strings.Contains(err.Error(), ".part")):
				t.Errorf("%d events of %d, %v", done.Events, want, err)
			}
		})
	}
}

// dropped has retention drop all but the last days.
func dropped(t *testing.T, b *testBundle) {
	b.do(t, retention.Policy{Bodies: 1})
	if n := len(b.rows(t, `SELECT name FROM retired WHERE dropped_at IS NOT NULL`)); n != len(b.days)-2 {
		t.Errorf("%d days were dropped", n)
	}
}

// detached ends retention between the detaching of a day and its drop.
func detached(t *testing.T, b *testBundle) {
	b.ask(t, retention.Policy{Bodies: 1})
	r := b.runner()
	r.AtStep(func(name string) error {
		if name == "drop" {
			return errCrash
		}
		return nil
	})
	if _, err := b.carry(t, r); !errors.Is(err, errCrash) {
		t.Error(err)
	}
}

// A stream says so too: what reads it cannot tell.
func TestStreamAcrossRetention(t *testing.T) {
	t.Parallel()
	b := setup(t, 12, 4, 30)
	once := false
	e := archive.Exporting{Pool: b.operator, Compression: archive.None, ChunkBytes: 2048, Progress: func(int64) {
		if !once {
			once = true
			dropped(t, b)
		}
	}}
	if done, err := archive.Stream(t.Context(), e, io.Discard); !errors.Is(err, archive.ErrShort) {
		t.Error(fmt.Sprint(done), err)
	}
}

// The folder that an order names is where its days go, whatever the processor's own; where that is not there, no day is dropped.
func TestFolderOfAnOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, 31, 4, 15)
	before := len(b.stored(t))
	b.folder = t.TempDir()
	order := func(folder string) {
		t.Helper()
		o, err := retention.Now(t.Context(), b.operator, retention.Policy{Bodies: 1})
		must(t, err)
		o.Folder, o.Export = folder, true
		must(t, errOf(runs.Ask(t.Context(), b.operator, runs.Order{Job: retention.Job, Asked: o})))
	}
	order(filepath.Join(t.TempDir(), "none"))
	if _, err := b.carry(t, b.runner()); err == nil || !strings.Contains(err.Error(), "it cannot be exported") || len(b.stored(t)) != before {
		t.Fatalf("%v, %d of %d events are left", err, len(b.stored(t)), before)
	}
	b.exec(t, `UPDATE runs SET status = 'failed', ended_at = now()`)
	folder := t.TempDir()
	order(folder)
	b.finishes(t, b.runner())
	files, err := filepath.Glob(filepath.Join(folder, "events_*.ndjson.zst"))
	if own, _ := filepath.Glob(filepath.Join(b.folder, "*")); err != nil || len(files) != 2 || len(own) > 0 {
		t.Errorf("files %v and %v, %v", files, own, err)
	}
	lines := 0
	for _, file := range files {
		lines += strings.Count(unpacked(t, file), "\n")
	}
	if left := len(b.stored(t)); lines != before-left || lines == 0 {
		t.Errorf("%d events are in files, %d of %d are left", lines, left, before)
	}
}
