package reconcile_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// badPages cannot bear a page, and badCalls no object.
type (
	badPages struct{ sim.Provider }
	badCalls struct{ sim.Provider }
)

func (badPages) ObjectPage(*provider.Source, *provider.API, string, string, string, http.Header, []byte) ([]provider.Listed, string, error) {
	panic("a list nobody thought of")
}

func (badCalls) Fetch(*provider.Source, *provider.API, string, string, string) (provider.Call, bool) {
	panic("a name nobody thought of")
}

// A sweep reads pages and objects beside its own goroutine. What panics there fails the run and not the process, and whoever comes next.
func TestASweepWhoseReaderPanics(t *testing.T) {
	t.Parallel()
	for name, reader := range map[string]provider.Reader{"page": badPages{}, "object": badCalls{}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newWorld(t, 210, living)
			b.api.version = sim.Named // so that each object is asked for by its name
			r := b.runner()
			r.Sources.Replace(b.source(func(s *reconcile.Source) { s.Reader, s.API.Version = reader, sim.Named }))
			b.carry(t, r)
			if got := b.ask(t, reconcile.Order{What: reconcile.Objects}); got.Status != runs.Failed || !strings.Contains(got.Detail, "panicked") || !strings.Contains(got.Detail, "nobody thought of") {
				t.Errorf("%s: %s", got.Status, got.Detail)
			}
		})
	}
}
