package retention_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// The folder that an order names is where its days go, whatever the processor's own; where that is not there, no day is dropped.
func TestFolderOfAnOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, 31, 4, 15)
	before := len(b.stored(t))
	b.folder = t.TempDir()
	order := func(folder string) {
		t.Helper()
		o, err := retention.Now(t.Context(), b.operator, retention.Policy{Bodies: 1})
		if err != nil {
			t.Fatal(err)
		}
		o.Folder, o.Export = folder, true
		if _, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: retention.Job, Asked: o}); err != nil {
			t.Fatal(err)
		}
	}
	order(filepath.Join(t.TempDir(), "none"))
	if _, err := b.carry(t, b.runner()); err == nil || !strings.Contains(err.Error(), "it cannot be exported") || len(b.stored(t)) != before {
		t.Fatalf("%v, %d of %d events are left", err, len(b.stored(t)), before)
	}
	b.exec(t, `UPDATE runs SET status = 'failed', ended_at = now()`)
	folder := t.TempDir()
	order(folder)
	if status, err := b.carry(t, b.runner()); err != nil || status != runs.Done {
		t.Fatal(status, err)
	}
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
