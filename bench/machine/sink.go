package machine

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// Sink takes traces over OTLP/HTTP as a collector does, counts them, and forgets them. A nil one
// takes none.
type Sink struct {
	url            string
	server         http.Server
	done           chan error
	batches, bytes atomic.Int64
}

// Traced is what a sink has taken: batches of spans, and their bytes as they were sent.
type Traced struct {
	Batches, Bytes int64
}

// NewSink starts a sink on an address of its own.
func NewSink() (*Sink, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the sink of traces: %w", err)
	}
	s := &Sink{url: "http://" + l.Addr().String(), done: make(chan error, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", s.take)
	s.server.Handler, s.server.ReadHeaderTimeout = mux, time.Minute
	go func() { s.done <- s.server.Serve(l) }()
	return s, nil
}

// take counts before it answers: once a program that waits for its last batch has ended, everything
// is counted.
func (s *Sink) take(_ http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil || n == 0 {
		return // a batch that was broken off is none
	}
	s.batches.Add(1)
	s.bytes.Add(n)
}

// Env is what a program of Postern needs in its environment to send its traces here, all of them;
// of a nil sink nothing.
func (s *Sink) Env() []string {
	if s == nil {
		return nil
	}
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + s.url}
}

// Traced is what has been taken since the start; of a nil sink nothing.
func (s *Sink) Traced() Traced {
	if s == nil {
		return Traced{}
	}
	return Traced{Batches: s.batches.Load(), Bytes: s.bytes.Load()}
}

// Close ends the sink. Whoever sends to it has ended before.
func (s *Sink) Close() error {
	err := s.server.Close()
	if ended := <-s.done; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
