package stripe_test

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/versioning"
)

// varied is what the n-th event of a sample says.
func varied(t *testing.T, s provider.Sample, n int, at time.Time) versioning.Input {
	t.Helper()
	v, err := stripe.Stripe{}.Vary(s, n, at, false)
	if err != nil {
		t.Fatal(err)
	}
	o, err := observe(&provider.Source{}, string(v.Body))
	if err != nil {
		t.Fatalf("observe %s: %v", s.Type, err)
	}
	in, err := versioning.FromObservation(o, at.Add(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// Whoever sends a type again sees that something changed, whether it is another of one second or the first of another second.
func TestEachVariedEventChangesSomething(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_790_000_000, 0)
	for _, s := range (stripe.Stripe{}).Samples() {
		first, second, later := varied(t, s, 1, at), varied(t, s, 2, at), varied(t, s, 1, at.Add(time.Second))
		if first.Partial != "" {
			continue
		}
		if first.State.Hash == second.State.Hash || first.State.Hash == later.State.Hash {
			t.Errorf("%s says the same again", s.Type)
		}
	}
}

// Updates of one second name the one before as what they changed, so that their order can be told.
func TestVariedUpdatesFormAChain(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_790_000_000, 0)
	for _, s := range (stripe.Stripe{}).Samples() {
		if !strings.HasSuffix(s.Type, ".updated") || strings.HasPrefix(s.Type, "v2.") {
			continue
		}
		var chain []versioning.Input
		for n := range 4 {
			chain = append(chain, varied(t, s, n+1, at))
		}
		last := chain[len(chain)-1].State
		rapid.Check(t, func(rt *rapid.T) {
			row := versioning.NewRow()
			for _, n := range rapid.Permutation([]int{0, 1, 2, 3}).Draw(rt, "order") {
				versioning.Apply(&row, chain[n])
			}
			if row.Ambiguous || row.State.Hash != last.Hash {
				rt.Fatalf("%s ends as %s, ambiguous %v", s.Type, row.State.JSON, row.Ambiguous)
			}
		})
	}
}
