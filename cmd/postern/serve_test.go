package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/testkit"
)

// runMain in the environment makes the test's program the command itself.
const runMain = "RUN_POSTERN_MAIN"

// serve collects garbage as the daemons do, and nobody has to read its log for it to begin and to stop.
func TestServeWithoutAReader(t *testing.T) {
	t.Parallel()
	file, dir := filepath.Join(t.TempDir(), "postern.yaml"), t.TempDir()
	settings := "database: {url: '" + testkit.Database(t).URL + "'}\nsources: {stripe: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}}\n"
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "serve", "--config", file, "--dir", dir, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	cmd.Env, cmd.Stderr = serveEnvironment(), fullPipe(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait() // nothing where it was waited for; else its end is that of ctx
	defer cancel()

	limit := fmt.Sprintf("\ngo_gc_gomemlimit_bytes %g\n", float64(config.Default().Ingest.QueueBytes+384<<20))
	testkit.Eventually(t, time.Minute, func() error { return metricsHold(t, dir, limit) })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("an orderly stop: %v (%v)", err, ctx.Err())
	}
}

// serveEnvironment is ours without what would configure the command, or the collector.
func serveEnvironment() []string {
	env := []string{runMain + "=1"}
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "POSTERN_") && !strings.HasPrefix(v, "GOGC=") && !strings.HasPrefix(v, "GOMEMLIMIT=") {
			env = append(env, v)
		}
	}
	return env
}

// fullPipe is an end into which nothing more goes, and from whose other end nobody reads.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	if err := w.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 4<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the pipe takes four megabytes: %v", err)
	}
	return w
}

// metricsHold asks the instance in a folder for its metrics and looks for a line.
func metricsHold(t *testing.T, dir, line string) error {
	t.Helper()
	in, err := config.ReadInstance(dir)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, in.AdminURL+"/metrics", nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err == nil && !strings.Contains(string(page), line) {
		err = fmt.Errorf("no %q among the metrics", line)
	}
	return err
}
