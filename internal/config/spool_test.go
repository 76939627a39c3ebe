package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/config"
)

const spoolExample = `
database: {url: "postgres://postern:pw@localhost/postern"}
ingest: {spool: {dir: %q, unsafe_dir: %t}}
sources: {a: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}}
`

// A spool's folder is the same wherever the process starts, and is still there when the machine has started again.
func TestSpoolFoldersOutliveTheMachine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dir    string
		unsafe bool
		want   string
	}{
		"none":                 {dir: ""},
		"on a disk":            {dir: "/nonexistent/spool"},
		"not from the top":     {dir: "spool", want: "line 3: ingest.spool.dir: spool depends on the folder"},
		"not from the top, on": {dir: "./spool", unsafe: true, want: "write the whole path"},
		"temporary":            {dir: "/tmp/postern/spool", want: "/tmp/postern/spool is in /tmp, which is emptied at a start"},
		"itself":               {dir: "/tmp", want: "unsafe_dir: true"},
		"by a detour":          {dir: "/nonexistent/../tmp/spool", want: "is in /tmp"},
		"temporary, on":        {dir: "/tmp/postern/spool", unsafe: true},
		"begins alike":         {dir: "/tmpfiles/spool"},
	} {
		_, err := config.Parse(fmt.Appendf(nil, spoolExample, c.dir, c.unsafe), environment())
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// A processor has no spool, so it may run where a gateway's folder is none.
func TestProcessorsNeedNoSpoolFolder(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "postern.yaml")
	write(t, file, fmt.Sprintf(spoolExample, "spool", false))
	if _, err := config.LoadProcessor(file); err != nil {
		t.Error(err)
	}
	if _, err := config.Load(file); err == nil {
		t.Error("a gateway takes it")
	}
}

// What may not be meant is told, and what a spool holds already needs no more room.
func TestWarnings(t *testing.T) {
	t.Parallel()
	const tooMuch = 4 << 40
	dir := filepath.Join(t.TempDir(), "spool")
	c := config.Default()
	if got := c.Warnings(); got != nil {
		t.Errorf("of nothing: %q", got)
	}
	c.Ingest.Spool = config.Spool{Dir: dir, MaxBytes: tooMuch, UnsafeDir: true}
	got := strings.Join(c.Warnings(), "\n")
	if !strings.Contains(got, "ingest.spool.unsafe_dir is on") || !strings.Contains(got, "MiB are free for "+dir+", and 4194304 MiB may be needed") {
		t.Errorf("warns %q", got)
	}
	if diff := cmp.Diff([]string{"ingest.spool.unsafe_dir"}, c.Unsafe()); diff != "" {
		t.Error(diff)
	}

	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	held := filepath.Join(dir, "1.spool")
	write(t, held, "")
	if err := os.Truncate(held, tooMuch); err != nil { // without taking room
		t.Fatal(err)
	}
	if got := strings.Join(c.Warnings(), "\n"); strings.Contains(got, "free") {
		t.Errorf("warns %q of a spool that is full already", got)
	}
}
