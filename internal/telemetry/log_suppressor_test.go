package telemetry_test

import (
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/telemetry"
)

// A line is logged if there was none of its key for a minute, with the number of suppressed ones.
func TestSuppressor_due_returnsSuppressedCount(t *testing.T) {
	t.Parallel()
	var c telemetry.Suppressor[string]
	began := time.Unix(1_800_000_000, 0)
	for _, step := range []struct {
		after time.Duration
		key   string
		since int
		due   bool
	}{
		{0, "a", 0, true},
		{0, "a", 0, false},
		{0, "b", 0, true},
		{time.Minute - 1, "a", 0, false},
		{time.Minute, "a", 2, true},
		{time.Minute, "a", 0, false},
		{time.Minute, "b", 0, true},
		{time.Hour, "a", 1, true},
	} {
		if since, due := c.Due(step.key, began.Add(step.after)); since != step.since || due != step.due {
			t.Errorf("%+v: logged %v, %d suppressed", step, due, since)
		}
	}
}
