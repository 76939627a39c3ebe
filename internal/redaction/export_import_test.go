package redaction_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/archive"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// exported is the log as a file.
func (b *testBundle) exported(t *testing.T) (path string, done archive.Exported) {
	t.Helper()
	var out bytes.Buffer
	done, err := archive.Stream(t.Context(), archive.Exporting{Pool: b.operator, Compression: archive.None}, &out)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "log.ndjson")
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, done
}

func (b *testBundle) imported(t *testing.T, path string) archive.Imported {
	t.Helper()
	im := archive.Importing{Pool: b.db.Role(t, "gateway"), Now: time.Now(), Sources: map[string]archive.Source{"sim": {Provider: sim.Provider{}, Config: &provider.Source{Name: "sim"}}}}
	im.Report = func(where string, why error) { t.Errorf("%s: %v", where, why) }
	done, err := archive.Import(t.Context(), im, path)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// An export leaves out what is redacted, and an import elsewhere does not have it; an older export brings nothing back where it came from.
func TestRedactedIsNotExported(t *testing.T) {
	t.Parallel()
	b, other := setup(t), setup(t)
	b.event(t, "hers", 1, "somebody@else.org")
	ids := b.store(t, "hers", body("hers", 5, email), "one", "two")
	b.apply(t, 0, ids...)
	b.store(t, "hers", body("hers", 6, "new@else.org"), "three")
	older, done := b.exported(t)
	if done.Events != 4 {
		t.Fatalf("%+v", done)
	}
	b.do(t, redaction.Order{Events: ids[1:]})
	newer, done := b.exported(t)
	text, err := os.ReadFile(newer)
	if err != nil || bytes.Contains(text, []byte("lovelace")) || done.Events != 2 || done.LeftOut != 2 {
		t.Errorf("%+v, %v", done, err)
	}
	if in := other.imported(t, newer); in.New != 2 || len(other.holding(t, "lovelace")) > 0 {
		t.Errorf("elsewhere: %+v", in)
	}
	if in := b.imported(t, older); in.New != 0 || in.Duplicate != 4 {
		t.Errorf("the older one: %+v", in)
	}
	if left := b.holding(t, "lovelace"); len(left) > 0 {
		t.Errorf("an older export brings it back into %v", left)
	}
	var left []int64
	if _, err := events.Walk(t.Context(), b.operator, &events.Filter{}, 0, 1<<62, func(e *events.Whole) error {
		if e.Body == nil {
			left = append(left, e.ID)
		}
		return nil
	}); err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
}
