package objectscan_test

import (
	"testing"

	"github.com/postern-gateway/postern/internal/objectscan"
)

// An ignored path matches the fields of array elements.
func TestIgnoredPaths_arrayElements_matchFields(t *testing.T) {
	t.Parallel()
	volatile := []string{"assets.count", "meta"}
	for path, want := range map[string]bool{"state.assets[0].count": true, "state.assets[12].count.day": true,
		"state.assets.count": true, `state.meta["a b"]`: true, "state.meta[3]": true, "state.meta": true,
		"state.assets[0].counts": false, "state.assets[0].name": false, "state.assets[1]": false, "state.assets": false,
		"state.metal": false} {
		if got := objectscan.IsIgnored(volatile, path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}
