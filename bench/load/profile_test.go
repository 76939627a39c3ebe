package load_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/pprof"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/bench/load"
)

// serveProfiles serves profiles of this process, as a measured program does.
func serveProfiles(t *testing.T) (admin string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// contendForLock starts goroutines that wait for a lock until the test ends.
func contendForLock(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var lock sync.Mutex
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				lock.Lock()
				<-time.After(time.Millisecond)
				lock.Unlock()
			}
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// Explain finds waiting in the trace although the program records no block profile.
func TestExplain_blockedGoroutines_areListed(t *testing.T) {
	t.Parallel()
	dir, admin := t.TempDir(), serveProfiles(t)
	contendForLock(t)
	if err := (load.Profile{CPU: time.Second, Trace: 200 * time.Millisecond}).Take(t.Context(), dir, "program",
		admin); err != nil {
		t.Fatal(err)
	}
	if err := load.ExplainProfiles(t.Context(), dir, "program"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"cpu": "flat", "allocs": "flat", "heap": "flat", "network": "flat",
		"scheduler": "flat", "block": "contendForLock"} {
		text, err := os.ReadFile(filepath.Join(dir, "program."+name+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), want) {
			t.Errorf("%s does not have %s:\n%s", name, want, text)
		}
	}
}

func TestTake_noProfiles_returnsError(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	err := (load.Profile{CPU: time.Second}).Take(t.Context(), t.TempDir(), "program",
		strings.TrimPrefix(server.URL, "http://"))
	if err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("Take of a program without profiles returned %v, want a 404", err)
	}
}
