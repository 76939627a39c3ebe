package admin

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// NewScrape returns a handler of /metrics, /healthz and /readyz only, for a scraper on another
// machine. Its responses never contain the cause of an error, because unauthenticated clients can
// read them.
func NewScrape(o Options) http.Handler {
	s := &scrape{Options: o}
	s.Logger = cmp.Or(s.Logger, slog.New(slog.DiscardHandler))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.Handle("GET /metrics", o.Metrics)
	return mux
}

type scrape struct {
	Options
	mu  sync.Mutex
	at  time.Time
	err error
}

func (s *scrape) ready(w http.ResponseWriter, r *http.Request) {
	if err := s.cachedReady(r.Context()); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "not ready\n") // the client may have disconnected
		return
	}
	_, _ = io.WriteString(w, "ready\n")
}

// cachedReady returns a result that is at most one second old. Unauthenticated clients can call it,
// and must not use the connections that events need.
func (s *scrape) cachedReady(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Ready != nil && time.Since(s.at) > time.Second {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyTimeout)
		defer cancel()
		if s.err, s.at = s.Ready(ctx), time.Now(); s.err != nil {
			s.Logger.Warn("not ready", "error", s.err)
		}
	}
	return s.err
}
