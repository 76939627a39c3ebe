package load

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Sink accepts traces over OTLP/HTTP as a collector does, counts them and drops them. The methods
// Env and Traced accept a nil Sink, which stands for traces being off.
type Sink struct {
	url            string
	server         http.Server
	done           chan error
	batches, bytes atomic.Int64
}

// Traced counts batches of spans and their bytes as sent.
type Traced struct {
	Batches, Bytes int64
}

// NewSink starts a sink on a free local port.
func NewSink() (*Sink, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the trace sink: %w", err)
	}
	s := &Sink{url: "http://" + l.Addr().String(), done: make(chan error, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", s.take)
	s.server.Handler, s.server.ReadHeaderTimeout = mux, time.Minute
	go func() { s.done <- s.server.Serve(l) }()
	return s, nil
}

// take counts a batch before it responds. Everything is therefore counted when a program has ended
// that waits for its last batch.
func (s *Sink) take(_ http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil || n == 0 {
		return // an incomplete batch does not count
	}
	s.batches.Add(1)
	s.bytes.Add(n)
}

// Env returns the environment variables with which a program of Postern sends all its traces here.
// A nil sink returns none.
func (s *Sink) Env() []string {
	if s == nil {
		return nil
	}
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + s.url}
}

// Traced returns the counts since the start. A nil sink returns zeros.
func (s *Sink) Traced() Traced {
	if s == nil {
		return Traced{}
	}
	return Traced{Batches: s.batches.Load(), Bytes: s.bytes.Load()}
}

// Close stops the sink. The programs that send to it must have ended.
func (s *Sink) Close() error {
	err := s.server.Close()
	if ended := <-s.done; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
