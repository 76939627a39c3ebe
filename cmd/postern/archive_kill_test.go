package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
)

// killed starts the command as a process of its own, and kills it as soon as something has come of it that was not there before. It returns whether
// the process was done before that.
func (b *testBundle) killed(t *testing.T, progress func() int64, args ...string) (done bool) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], append([]string{"--dir", b.dir}, args...)...)
	cmd.Env = serveEnvironment()
	before := progress()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	testkit.Eventually(t, time.Minute, func() error {
		select {
		case err := <-ended:
			done = true
			if err != nil {
				t.Fatalf("%v: %v", args, err)
			}
			return nil
		default:
		}
		if progress() > before {
			return nil
		}
		return errors.New("no progress")
	})
	if done {
		return true
	}
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	return <-ended == nil
}

// Killed again and again, an export and an import go on and end as if nobody had killed them.
func TestKilledExportAndImport(t *testing.T) {
	t.Parallel()
	a, b := setup(t), setup(t)
	const events = 30_000
	for _, sql := range []string{`SELECT ensure_partitions(clock_ms() - 86400000, clock_ms())`, `
		INSERT INTO events SELECT id, 1, 'evt_' || i, 'customer.updated', '', 'customer', 'cus_1', NULL, now(), 'webhook', '', '{}', '{}', substr(sha256(i::text::bytea), 1, 16), id, 0,
		  convert_to(format('{"id":"evt_%s","filler":"%s"}', i, repeat(md5(i::text), 40)), 'UTF8')
		FROM (SELECT i, (extract(epoch FROM now())::bigint * 1000 - 40000 + i) << 20 AS id FROM generate_series(1, ` + fmt.Sprint(events) + `) i) e`} {
		if _, err := a.db.Pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "x.ndjson")
	written := func() int64 {
		if info, err := os.Stat(path + ".part"); err == nil {
			return info.Size()
		}
		return 0
	}
	kills := 0
	for ; !a.killed(t, written, "export", path, "--resume"); kills++ {
		if kills > 100 {
			t.Fatal("the export does not come to an end")
		}
	}
	want := a.run(t, "export", "-").out
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("after %d kills the export has %d bytes, not %d (%v)", kills, len(got), len(want), err)
	}
	stored := func() (n int64) {
		if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Logf("the export was killed %d times", kills)
	if kills < 2 {
		t.Errorf("the export was killed %d times only", kills)
	}
	for kills = 0; kills < 10 && !b.killed(t, stored, "import", path); kills++ {
	}
	if kills < 2 {
		t.Errorf("the import was killed %d times only", kills)
	}
	b.run(t, "import", path).want(t, 0, fmt.Sprintf("read       %d\n", events), "")
	var different int64
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) - count(DISTINCT event_id) FROM events`).Scan(&different); err != nil || stored() != events || different != 0 {
		t.Errorf("%d events of %d, %d of them doubled, %v", stored(), events, different, err)
	}
}
