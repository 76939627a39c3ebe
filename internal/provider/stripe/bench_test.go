package stripe_test

import (
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

// BenchmarkDelivery is what one delivery costs before and after the log: verify and identify, then observe.
func BenchmarkDelivery(b *testing.B) {
	p, src := stripe.Stripe{}, source("whsec_old", "whsec_new")
	d, err := p.Sign(source("whsec_new"), p.Samples()[4], time.Unix(1_700_000_000, 0))
	if err != nil {
		b.Fatal(err)
	}
	b.Run("verify", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := p.Verify(src, d); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("identify", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := p.Identify(src, d); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("observe", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := p.Observe(src, &provider.Stored{Body: d.Body}); err != nil {
				b.Fatal(err)
			}
		}
	})
}
