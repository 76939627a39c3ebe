package all_test

import (
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/versioning"
)

// An API may answer from a copy that is a second behind: that an object was not there when it was looked at so is nothing against an event which tells that it was made in that second.
func TestALookMayBeASecondBehind(t *testing.T) {
	t.Parallel()
	second := time.Date(2026, time.November, 22, 12, 0, 10, 0, time.UTC)
	lookers := 0
	for _, p := range all.All() {
		looker, ok := p.(provider.Looker)
		if !ok {
			continue
		}
		lookers++
		gone, err := looker.Snapshot(&provider.Source{}, &provider.Snapshot{ObjectType: "product", ObjectID: "1", Missing: true})
		if err != nil {
			t.Fatalf("%s: %v", p.Name(), err)
		}
		state, err := canonical.Parse([]byte(`{"id": "1"}`))
		if err != nil {
			t.Fatal(err)
		}
		// Made at 10.5 s, looked at from 11.2 s on, and the copy was of 10.2 s.
		looked, err := versioning.FromLook(gone, &provider.Look{Date: second.Add(time.Second), Lag: looker.Lag()}, second.Add(2*time.Second))
		if err != nil {
			t.Fatalf("%s: %v", p.Name(), err)
		}
		made, err := versioning.FromObservation(provider.Observation{ObjectType: "product", ObjectID: "1", HasAt: true, Own: true, At: second.UnixMicro(), Unit: gone.Unit, Rank: 1, State: state}, second.Add(time.Second))
		if err != nil {
			t.Fatalf("%s: %v", p.Name(), err)
		}
		for _, order := range [][]versioning.Input{{looked, made}, {made, looked}} {
			row := versioning.NewRow()
			for _, in := range order {
				versioning.Apply(&row, in)
			}
			if row.State.Deleted && !row.Ambiguous && row.LookAfter == 0 {
				t.Errorf("%s: a look that was a second behind has deleted what was made in that second, and no other is owed", p.Name())
			}
		}
	}
	if lookers < 3 {
		t.Errorf("%d providers are looked at", lookers)
	}
}
