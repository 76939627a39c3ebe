package reconcile_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// elsewhere is a provider whose objects have gone to where they have other names.
type elsewhere struct{ sim.Provider }

func (elsewhere) Snapshot(*provider.Source, *provider.Snapshot) (provider.Observation, error) {
	return provider.Observation{}, &provider.Dead{Reason: "another one is answered", Moved: true}
}

// A look that another object answers for is not made again and again.
func TestMovedObjectsAreParked(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 97, eventTime)
	id := b.owing(t)
	r := b.runner()
	r.Sources.Replace(b.source(func(s *reconcile.Source) { s.Reader = elsewhere{} }))
	looksOf(t, r, "looks")
	testkit.Eventually(t, time.Minute, func() error {
		if n := one[int](t, b, `SELECT count(*) FROM hints WHERE object_id = $1 AND due = 'infinity' AND error LIKE '%another one is answered%next event%'`, id); n != 1 {
			return fmt.Errorf("%d hints are parked", n)
		}
		return nil
	})
	if n := b.api.made("/things/"); n != 1 {
		t.Errorf("%d calls", n)
	}
}

// A field of an array's elements that changes without a version is no difference of theirs.
func TestVolatileFields(t *testing.T) {
	t.Parallel()
	volatile := []string{"assets.count", "meta"}
	for path, want := range map[string]bool{"state.assets[0].count": true, "state.assets[12].count.day": true, "state.assets.count": true, `state.meta["a b"]`: true, "state.meta[3]": true, "state.meta": true,
		"state.assets[0].counts": false, "state.assets[0].name": false, "state.assets[1]": false, "state.assets": false, "state.metal": false} {
		if got := reconcile.Changing(volatile, path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}
