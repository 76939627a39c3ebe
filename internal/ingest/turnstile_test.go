package ingest_test

import (
	"bytes"
	"net/http"
	"runtime"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// gated is a provider that verifies nothing before its gate is open, but bodies of one byte.
type gated struct {
	sim.Provider
	open, entered chan struct{}
}

func (gated) Name() string { return "gated" }

func (g gated) Verify(_ *provider.Source, d *provider.Delivery) (provider.Verification, error) {
	if len(d.Body) > 1 {
		g.entered <- struct{}{}
		<-g.open
	}
	return provider.Verification{Scheme: "none"}, nil
}

func (gated) Identify(_ *provider.Source, d *provider.Delivery) ([]provider.Event, error) {
	e := provider.Event{Type: "thing", Fingerprint: provider.BodyFingerprint(d.Body)}
	provider.NameByContent(&e, d.Body)
	return []provider.Event{e}, nil
}

// As many large bodies are read at once as there are processors; others wait for their turn, and no longer than a request may. Small ones
// pass, and so does a large one after a provider that panicked over its turn.
func TestLargeBodiesTakeTurns(t *testing.T) {
	t.Parallel()
	g := gated{open: make(chan struct{}), entered: make(chan struct{}, 100)}
	b := setup(t, func(o *ingest.Options) {
		o.Settings.Deadline = 2 * time.Second
		ep := o.Endpoints["panic"]
		ep.Provider = g
		o.Endpoints["gated"] = ep
	})
	post := func(source string, size int, fill byte) answer {
		a, err := b.try(t.Context(), source, &provider.Delivery{Body: bytes.Repeat([]byte{fill}, size), Header: http.Header{}})
		if err != nil {
			t.Error(err)
		}
		return a
	}
	const large = 64 << 10
	for range 2 * runtime.GOMAXPROCS(0) {
		post("panic", large, 'x').refused(t, http.StatusInternalServerError, "internal")
	}
	answers := make(chan answer, runtime.GOMAXPROCS(0))
	for i := range runtime.GOMAXPROCS(0) {
		go func() { answers <- post("gated", large, byte('a'+i)) }()
	}
	for range runtime.GOMAXPROCS(0) {
		select {
		case <-g.entered:
		case <-time.After(30 * time.Second):
			t.Fatal("a turn is not given back")
		}
	}
	post("gated", 1, 'x').receipt(t)
	post("gated", large, 'z').refused(t, http.StatusServiceUnavailable, "overloaded")
	if len(g.entered) > 0 {
		t.Error("one body more was read than there are processors")
	}
	close(g.open)
	for range runtime.GOMAXPROCS(0) {
		(<-answers).receipt(t)
	}
	post("gated", large, 'z').receipt(t)
}
