package shopify_test

import (
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider/shopify"
)

// Whoever sends a topic again sees that something changed. Deletes and what has no object say nothing that could.
func TestEachVariedEventChangesSomething(t *testing.T) {
	t.Parallel()
	s := suite()
	at := time.Unix(1_790_000_000, 0)
	for _, sample := range (shopify.Shopify{}).Samples() {
		bodies := map[string]int{}
		for n := 1; n <= 3; n++ {
			v, err := shopify.Shopify{}.Vary(sample, n, at, false)
			if err != nil {
				t.Fatal(err)
			}
			d, err := shopify.Shopify{}.Sign(s.Source, v, at)
			if err != nil {
				t.Fatal(err)
			}
			_, o, err := s.Observed(t, d)
			if err != nil {
				t.Fatalf("observe %s: %v", sample.Type, err)
			}
			if o.State != nil && !o.Deleted {
				bodies[string(v.Body)]++
			}
		}
		for _, times := range bodies {
			if times > 1 {
				t.Errorf("%s says the same %d times", sample.Type, times)
			}
		}
	}
}
