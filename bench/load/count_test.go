package load

import (
	"errors"
	"testing"
	"time"
)

// Each request is counted once, in one category, and each answer in time has its latency. A server
// that responds after minutes must not have a better p99 than one that responds within a minute.
func TestResultCount_anyOutcome_countedOnce(t *testing.T) {
	t.Parallel()
	r := Result{Latency: newHistogram(), Status: map[int]int64{}}
	for _, c := range []struct {
		status int
		took   time.Duration
		err    error
	}{
		{200, time.Millisecond, nil},
		{200, latest, nil},
		{200, latest + time.Microsecond, nil},
		{200, 5 * time.Minute, nil},
		{503, time.Second, nil},
		{503, 2 * time.Minute, nil},
		{0, time.Second, errors.New("connection reset")},
	} {
		r.count(c.status, c.took, c.err)
	}
	if r.Answered != 2 || r.Refused != 1 || r.Broken != 4 || r.Status[200] != 2 || r.Status[503] != 1 {
		t.Errorf("answered %d, refused %d, broken %d, by status %v", r.Answered, r.Refused, r.Broken, r.Status)
	}
	if n := r.Latency.TotalCount(); n != r.Answered {
		t.Errorf("%d latencies of %d answers", n, r.Answered)
	}
	if len(r.Errors) != 5 {
		t.Errorf("got errors %q, want five", r.Errors)
	}
}
