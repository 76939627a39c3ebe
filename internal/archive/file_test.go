package archive_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/postern-gateway/postern/internal/archive"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit"
)

// readDecompressed returns a file's decompressed text.
func readDecompressed(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	testkit.Must(t, err)
	switch archive.CompressionByName(path) {
	case archive.Gzip:
		r, err := gzip.NewReader(bytes.NewReader(text))
		if err == nil {
			text, err = io.ReadAll(r)
		}
		testkit.Must(t, err)
	case archive.Zstd:
		r, err := zstd.NewReader(nil)
		if err == nil {
			defer r.Close()
			text, err = r.DecodeAll(text, nil)
		}
		testkit.Must(t, err)
	}
	return string(text)
}

func filledLog(t *testing.T, n int) *instance {
	t.Helper()
	in := setup(t)
	in.register(t)
	for i := range n {
		in.append(t, in.simple(strings.Repeat(fmt.Sprint("body ", i), 20), fmt.Sprint("a", i), fmt.Sprint("b", i)))
	}
	return in
}

// An export is interrupted after each of its chunks, with the next one incomplete or not yet
// recorded. It continues in the same file, although events were appended meanwhile.
func TestExportToFile_interrupted_continuesAtPosition(t *testing.T) {
	t.Parallel()
	in := filledLog(t, 12)
	for _, name := range []string{"x.ndjson", "x.ndjson.gz", "x.ndjson.zst"} {
		path, want := filepath.Join(t.TempDir(), name), string(in.export(t, events.Filter{}))
		e := archive.ExportParams{Pool: in.operator, Compression: archive.CompressionByName(name), ChunkBytes: 2000}
		ended := 0
		for {
			ctx, cancel := context.WithCancel(t.Context())
			e.Progress = func(int64) { cancel() }
			done, err := archive.ExportToFile(ctx, e, path, map[string]string{"a": "b"}, ended > 0)
			cancel()
			if err == nil {
				if done.Events != int64(strings.Count(want, "\n")) || done.Skipped != 0 || done.Bound == 0 {
					t.Errorf("%+v", done)
				}
				break
			}
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if _, err := os.Stat(path); err == nil {
				t.Fatal("the file has its name before it is complete")
			}
			appendTorn(t, path+".part", ended)
			in.append(t, in.simple("late", fmt.Sprint(name, ended)))
			ended++
		}
		if got := readDecompressed(t, path); got != want || ended < 3 {
			t.Errorf("%s: after %d ends: %s", name, ended, cmp.Diff(want, got))
		}
		left, err := filepath.Glob(path + "*")
		if err != nil || len(left) != 1 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
}

// appendTorn appends what a process leaves that ends while it writes a chunk.
func appendTorn(t *testing.T, path string, n int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.WriteString(strings.Repeat(`{"postern":1,"torn`, n))
	}
	testkit.Must(t, errors.Join(err, f.Close()))
}

func TestExportToFile_endsBeforeCleanup_finishesOnResume(t *testing.T) {
	t.Parallel()
	in := filledLog(t, 2)
	path := filepath.Join(t.TempDir(), "x.ndjson")
	e := archive.ExportParams{Pool: in.operator, Compression: archive.None}
	ctx, cancel := context.WithCancel(t.Context())
	e.Progress = func(int64) { cancel() } // after the last chunk the context is not checked any more
	if _, err := archive.ExportToFile(ctx, e, path, nil, false); err != nil {
		t.Fatal(err)
	}
	text := readDecompressed(t, path)
	state := fmt.Sprintf(`{"postern_export":1,"input":null,"filter":{},`+
		`"compression":"none","events":4,"excluded":0,"bytes":%d,"bound":"1","cursor":"1"}`, len(text))
	for _, both := range []bool{false, true} { // the file has its temporary name too
		testkit.Must(t, os.WriteFile(path+".state", []byte(state), 0o600))
		if both {
			testkit.Must(t, os.Link(path, path+".part"))
		}
		done, err := archive.ExportToFile(t.Context(), e, path, nil, true)
		if err != nil || done.Events != 4 || readDecompressed(t, path) != text {
			t.Errorf("%+v, %v", done, err)
		}
		if left, err := filepath.Glob(path + ".*"); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
}

// A file that appears under the export's name during the export is not overwritten, and nothing of
// the export is lost.
func TestExportToFile_fileExists_fails(t *testing.T) {
	t.Parallel()
	in := filledLog(t, 6)
	path := filepath.Join(t.TempDir(), "x.ndjson")
	e := archive.ExportParams{Pool: in.operator, Compression: archive.None}
	e.Progress = func(int64) {
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Error(err)
		}
	}
	if _, err := archive.ExportToFile(t.Context(), e, path, nil, false); !errors.Is(err, archive.ErrExists) ||
		readDecompressed(t, path) != "precious" {
		t.Errorf("%.80q, %v", readDecompressed(t, path), err)
	}
	e.Progress = nil
	if _, err := archive.ExportToFile(t.Context(), e, path, nil, true); !errors.Is(err, archive.ErrExists) {
		t.Error(err)
	}
	testkit.Must(t, os.Rename(path, path+" of somebody"))
	if _, err := archive.ExportToFile(t.Context(), e, path, nil, true); err != nil ||
		readDecompressed(t, path) != string(in.export(t, events.Filter{})) {
		t.Error(err)
	}
}

// An export overwrites no existing file, and does not continue another export.
func TestExportToFile_badParams_fails(t *testing.T) {
	t.Parallel()
	in := filledLog(t, 6)
	path := filepath.Join(t.TempDir(), "x.ndjson")
	begin := func() {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		e := archive.ExportParams{Pool: in.operator, Compression: archive.None, ChunkBytes: 1000,
			Progress: func(int64) { cancel() }}
		if _, err := archive.ExportToFile(ctx, e, path, map[string]string{"type": "a*"}, false); !errors.Is(err,
			context.Canceled) {
			t.Fatal(err)
		}
	}
	begin()
	e := archive.ExportParams{Pool: in.operator, Compression: archive.None}
	for what, c := range map[string]struct {
		e      archive.ExportParams
		words  map[string]string
		resume bool
		want   error
		text   string
	}{
		"start again": {e, map[string]string{"type": "a*"}, false, archive.ErrUnfinished, "--resume"},
		"other words": {e, map[string]string{"type": "b*"}, true, archive.ErrOtherParams, `{"type":"a*"}`},
		"compressed": {archive.ExportParams{Pool: in.operator, Compression: archive.Zstd},
			map[string]string{"type": "a*"}, true, archive.ErrOtherParams, "compression none"},
	} {
		if _, err := archive.ExportToFile(t.Context(), c.e, path, c.words, c.resume); !errors.Is(err, c.want) ||
			!strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", what, err)
		}
	}
	testkit.Must(t, os.WriteFile(path, nil, 0o600))
	if _, err := archive.ExportToFile(t.Context(), e, path, nil, true); !errors.Is(err, archive.ErrExists) {
		t.Errorf("the file is there: %v", err)
	}
	testkit.Must(t, os.Remove(path))
	testkit.Must(t, os.Truncate(path+".part", 10))
	if _, err := archive.ExportToFile(t.Context(), e, path, map[string]string{"type": "a*"}, true); err == nil ||
		!strings.Contains(err.Error(), "fewer than") {
		t.Errorf("a file that was cut: %v", err)
	}
	testkit.Must(t, os.WriteFile(path+".state", []byte(`{"postern_export":2}`), 0o600))
	if _, err := archive.ExportToFile(t.Context(), e, path, nil, true); err == nil ||
		!strings.Contains(err.Error(), "another release") {
		t.Errorf("a state of another release: %v", err)
	}
}

// Two processes do not write one file.
func TestExportToFile_concurrent_onlyOneRuns(t *testing.T) {
	t.Parallel()
	in := filledLog(t, 6)
	path := filepath.Join(t.TempDir(), "x.ndjson")
	second := make(chan error, 10)
	e := archive.ExportParams{Pool: in.operator, Compression: archive.None, ChunkBytes: 1000}
	e.Progress = func(int64) {
		_, err := archive.ExportToFile(t.Context(), archive.ExportParams{Pool: in.operator, Compression: archive.None},
			path, nil, true)
		second <- err
	}
	_, err := archive.ExportToFile(t.Context(), e, path, nil, false)
	testkit.Must(t, err)
	if err := <-second; err == nil || !strings.Contains(err.Error(), "another process is exporting") {
		t.Errorf("a second export meanwhile: %v", err)
	}
}

// While 16 writers append, an export has every event that was committed before it began, each once.
// The next one continues after its bound.
func TestExport_concurrentAppends_skipsNothing(t *testing.T) {
	t.Parallel()
	in := setup(t)
	in.register(t)
	var mu sync.Mutex
	committed := map[string]bool{}
	ctx, stop := context.WithTimeout(t.Context(), 4*time.Second)
	defer stop()
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				key := fmt.Sprint(w, "-", i)
				if _, err := events.Append(t.Context(), in.gateway,
					[]events.Delivery{in.simple("x", key)}); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				committed[key] = true
				mu.Unlock()
			}
		})
	}
	seen := map[string]int{}
	var after int64
	for round := 0; ; round++ {
		last := ctx.Err() != nil
		if last {
			wg.Wait()
		}
		mu.Lock()
		before := len(committed)
		want := make([]string, 0, before)
		for key := range committed {
			want = append(want, key)
		}
		mu.Unlock()
		var out bytes.Buffer
		done, err := archive.ExportToWriter(t.Context(),
			archive.ExportParams{Pool: in.operator, Filter: events.Filter{AfterID: after}, Compression: archive.None,
				ChunkBytes: 5000}, &out)
		testkit.Must(t, err)
		after = done.Bound
		for line := range strings.Lines(out.String()) {
			_, rest, _ := strings.Cut(line, `"event_id":"`)
			key, _, _ := strings.Cut(rest, `"`)
			seen[key]++
		}
		for _, key := range want {
			if seen[key] != 1 {
				t.Fatalf("round %d: event %s is there %d times", round, key, seen[key])
			}
		}
		if last {
			break
		}
	}
	if len(seen) != len(committed) || len(seen) < 100 {
		t.Errorf("%d events exported of %d", len(seen), len(committed))
	}
}

// Events whose bodies the log no longer has are skipped and counted, because an event without a
// body could not be applied.
func TestExport_eventsWithoutBodies_areSkipped(t *testing.T) {
	t.Parallel()
	in := filledLog(t, 3)
	for _, sql := range []string{`ALTER TABLE events DISABLE TRIGGER ALL`, `UPDATE events SET body = NULL
		WHERE id = delivery_id AND delivery_id = (SELECT min(delivery_id) FROM events)`} {
		in.db.Exec(t, sql)
	}
	var out bytes.Buffer
	done, err := archive.ExportToWriter(t.Context(), archive.ExportParams{Pool: in.operator, Compression: archive.None},
		&out)
	if err != nil || done.Events != 4 || done.Skipped != 2 || bytes.Count(out.Bytes(), []byte("\n")) != 4 {
		t.Errorf("%+v, %v", done, err)
	}
}

// The usual programs can decompress files that are compressed in chunks.
func TestCompression_otherPrograms_readIt(t *testing.T) {
	t.Parallel()
	in := filledLog(t, 12)
	path := filepath.Join(t.TempDir(), "x.ndjson.gz")
	if _, err := archive.ExportToFile(t.Context(), archive.ExportParams{Pool: in.operator, Compression: archive.Gzip,
		ChunkBytes: 1000}, path, nil, false); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "gzip", "-dc", path).Output()
	if err != nil || string(out) != string(in.export(t, events.Filter{})) {
		t.Errorf("gzip reads %d bytes, %v", len(out), err)
	}
}

// Reading any file ends, and no line is lost: what is not an event is an entry with an error.
func FuzzFile(f *testing.F) {
	for _, text := range []string{"{\"id\":1}\n\n[2]\r\n",
		"\x1f\x8b\x08", "\x28\xb5\x2f\xfd", "{\"postern\":1}\n"} {
		for i := range archive.Formats {
			f.Add([]byte(text), i)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, n int) {
		format := archive.Formats[uint(n)%uint(len(archive.Formats))]
		raws, errs, err := archive.Entries(text, format)
		if err != nil || bytes.HasPrefix(text, []byte{0x1f, 0x8b}) ||
			bytes.HasPrefix(text, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
			return
		}
		if len(raws) != len(errs) || len(raws) > len(text)+1 {
			t.Fatalf("%d entries, %d errors", len(raws), len(errs))
		}
		got, want := joinLines(bytes.Join(raws, nil)), joinLines(text)
		if !bytes.Equal(want, got) {
			t.Fatalf("%s: entries %q of %q", format, got, want)
		}
	})
}

// joinLines removes line ends and blank lines.
func joinLines(text []byte) []byte {
	var out []byte
	for line := range bytes.Lines(text) {
		if len(bytes.TrimSpace(line)) > 0 {
			out = append(out, bytes.Trim(line, "\r\n")...)
		}
	}
	return out
}
