package app_test

import (
	"testing"

	"github.com/postern-gateway/postern/internal/app"
)

// What may be garbage is bounded in bytes, not as a share of whatever is in use.
func TestPercentOf(t *testing.T) {
	t.Parallel()
	for inUse, want := range map[uint64]int{0: 400, 1: 400, 12 << 20: 400, 24 << 20: 200, 48 << 20: 100, 96 << 20: 50, 192 << 20: 25, 1 << 40: 25} {
		if got := app.PercentOf(inUse); got != want {
			t.Errorf("%d bytes in use: %d, want %d", inUse, got, want)
		}
	}
}
