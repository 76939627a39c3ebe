package verify_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/verify"
)

// delivered is a delivery of a source under a key; the body says nothing of an object.
func (b *testBundle) delivered(source, key string) ingest.Kept {
	body := []byte(key)
	return ingest.Kept{Source: source, Provider: "sim", Delivery: events.Delivery{ReceivedAt: receipt, Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`),
		Body: body, Events: []provider.Event{{Key: key, Type: "thing", Fingerprint: provider.BodyFingerprint(body)}}}}
}

// appended is what the drainer does.
func (b *testBundle) appended(t *testing.T, kept ...ingest.Kept) {
	t.Helper()
	for _, k := range kept {
		k.Delivery.Source = b.log.Source
		if _, err := events.Append(t.Context(), b.db.Pool, []events.Delivery{k.Delivery}); err != nil {
			t.Fatal(err)
		}
	}
}

// spooled is a spool's folder that a process has left with some records, in one file.
func spooled(t *testing.T, records ...[]byte) (dir, file string) {
	t.Helper()
	dir = t.TempDir()
	disk, err := spool.Folder(dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := spool.Open(disk, spool.Options{MaxBytes: 1 << 30, SegmentBytes: 64 << 10, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	for _, rec := range records {
		if err := s.Append(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.spool"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	return dir, files[0]
}

func record(t *testing.T, k ingest.Kept) []byte {
	t.Helper()
	rec, err := k.Record()
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func (b *testBundle) records(t *testing.T, source string, keys ...string) (records [][]byte) {
	t.Helper()
	for _, key := range keys {
		records = append(records, record(t, b.delivered(source, key)))
	}
	return records
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

// withSpools verifies a log beside spools.
func (b *testBundle) withSpools(t *testing.T, wait time.Duration, dirs ...string) *verify.Report {
	t.Helper()
	o := b.options(t)
	o.Spools, o.Wait, o.Sources = dirs, wait, nil
	return run(t, o)
}

// What waits in a spool is told with its age, and is a violation only when it is too old; what is in the log already waits for nobody.
func TestSpoolWaits(t *testing.T) {
	t.Parallel()
	b := empty(t)
	b.appended(t, b.delivered("sim", "in the log"))
	one, _ := spooled(t, b.records(t, b.sourceName(t), "in the log", "first", "second")...)
	two, _ := spooled(t, b.records(t, "a source that the log does not know", "in the log")...)
	r := b.withSpools(t, time.Hour, one, two)
	if len(r.Findings) != 0 || len(r.Spools) != 2 || r.Looked["spooled"] != 4 {
		t.Fatalf("%+v", r)
	}
	if s := r.Spools[0]; s.Dir != one || s.Deliveries != 3 || s.InLog != 1 || s.Waiting != 2 || len(s.Files) != 1 || s.Files[0].Oldest == nil {
		t.Errorf("%+v", s)
	}
	if s := r.Spools[1]; s.Deliveries != 1 || s.InLog != 0 || s.Waiting != 1 {
		t.Errorf("%+v", s)
	}
	var waits []string
	for _, w := range r.Waiting {
		waits = append(waits, fmt.Sprint(w.What, ": ", w.Count))
	}
	if want := "deliveries in spool " + one + " that are not in the log yet: 2"; !strings.Contains(strings.Join(waits, "\n"), want) {
		t.Errorf("no %q in %q", want, waits)
	}
	b.clean(t)
	late := b.withSpools(t, time.Nanosecond, one)
	found(t, late, verify.WaitsTooLong, 2) // the event without an outcome, too
	if item := late.Findings[0].Items[1]; !strings.Contains(item.Detail, one) || !strings.Contains(item.Mend, "start the gateway of that folder") {
		t.Errorf("%+v", item)
	}
	b.appended(t, b.delivered("sim", "first"), b.delivered("sim", "second"))
	if s := b.withSpools(t, time.Hour, one).Spools[0]; s.InLog != 3 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

func (b *testBundle) sourceName(t *testing.T) string {
	t.Helper()
	return b.options(t).Known.Name[b.log.Source]
}

// flip changes a byte of a file.
func flip(t *testing.T, file string, place int) {
	t.Helper()
	bytes, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	bytes[place] ^= 1
	if err := os.WriteFile(file, bytes, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A damaged last delivery looks like a write that was cut off.
func TestVerify_tornFileSetApart_isAViolation(t *testing.T) {
	t.Parallel()
	b := empty(t)
	b.appended(t, b.delivered("sim", "a"))
	dir, file := spooled(t, b.records(t, b.sourceName(t), "a", "b")...)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	flip(t, file, len(bytes.TrimRight(text, "\x00"))-1)
	rename(t, file, file+".damaged")
	r := b.withSpools(t, time.Hour, dir)
	if item := found(t, r, verify.SpoolTorn, 1); item.File != file+".damaged" || r.Violations() != 1 {
		t.Errorf("%+v", r)
	}
}

// What is lost, or will be seen by nobody, is a violation that names the file and what mends it.
func TestSpoolViolations(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// change makes of a folder whose file holds "a", which is in the log, and "b" and "c", which are not, what is to be found.
		change func(t *testing.T, dir, file string)
		kind   verify.Kind
		n      int64
		detail string
		mend   string
	}{
		"a record that is damaged": {func(t *testing.T, _, file string) { flip(t, file, 100) }, verify.SpoolDamaged, 1, "at 1 places", ""},
		"a file that is damaged":   {func(t *testing.T, _, file string) { flip(t, file, 20) }, verify.SpoolDamaged, 1, "does not begin as a segment", ""},
		"a file set apart with what nobody took": {func(t *testing.T, _, file string) { rename(t, file, file+".damaged") }, verify.SpoolNotTaken, 2, `event "b"`,
			".spool.damaged "},
		"a delivery that was refused": {func(t *testing.T, dir, file string) {
			if err := os.WriteFile(filepath.Join(dir, "1790000000000000-00.refused"), record(t, (&testBundle{}).delivered("sim", "d")), 0o600); err != nil {
				t.Fatal(err)
			}
		}, verify.SpoolRefused, 1, `event "d", acknowledged at 2026-09-21T14:13:20`, ""},
		"a delivery that nobody can read": {func(t *testing.T, dir, file string) {
			if err := os.WriteFile(filepath.Join(dir, "1790000000000000-00.refused"), []byte("odd"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, verify.SpoolRefused, 1, "read a kept delivery", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := empty(t)
			b.appended(t, b.delivered("sim", "a"))
			dir, file := spooled(t, b.records(t, b.sourceName(t), "a", "b", "c")...)
			c.change(t, dir, file)
			item := found(t, b.withSpools(t, time.Hour, dir), c.kind, c.n)
			if !strings.Contains(item.Detail, c.detail) || !strings.Contains(item.Mend, c.mend) || !strings.HasPrefix(item.File, dir) || (c.mend == "") != (item.Mend == "") {
				t.Errorf("%+v", item)
			}
		})
	}
}

// What was set apart and is in the log, or may have been forgotten with its day, is a note.
func TestSpoolNotes(t *testing.T) {
	t.Parallel()
	b := empty(t)
	b.appended(t, b.delivered("sim", "a"))
	dir, file := spooled(t, b.records(t, b.sourceName(t), "a")...)
	rename(t, file, file+".damaged")
	if r := b.withSpools(t, time.Hour, dir); len(r.Findings) != 0 || len(r.Notes) != 2 || !strings.Contains(r.Notes[0], "all that can be read of it is in the log; it can be removed") {
		t.Errorf("%+v", r)
	}
	lost, file := spooled(t, b.records(t, b.sourceName(t), "never seen")...)
	rename(t, file, file+".damaged")
	found(t, b.withSpools(t, time.Hour, lost), verify.SpoolNotTaken, 1)
	b.exec(t, `INSERT INTO retired (name, lo, hi, folded_to, events, bytes, run, ready_at, updated_at) VALUES ('events_x', 0, $1, 0, 0, 0, 1, now(), now())`, events.FirstID(time.Now().Add(24*time.Hour)))
	if r := b.withSpools(t, time.Hour, lost); len(r.Findings) != 0 || len(r.Notes) != 2 || !strings.HasPrefix(r.Notes[0], "1 deliveries of spool") {
		t.Errorf("%+v", r)
	}
}
