package operations_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/operations"
)

// Concurrent callers share one report, also if the first of them disconnects. After a minute there
// is a new one.
func TestDoctor_callers_shareReport(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		examined := 0
		d := &operations.Doctor{Options: func() doctor.Options {
			examined++
			<-time.After(time.Second) // the fake clock of the test's bubble
			return doctor.Options{PoolError: context.DeadlineExceeded}
		}}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		var callers sync.WaitGroup
		callers.Go(func() { _, _ = d.Examine(gone) }) // it may be the first, or get an error
		for range 20 {
			callers.Go(func() {
				r, err := d.Examine(t.Context())
				if err != nil || r.Errors != 1 || len(r.Checks) != 1 || r.Checks[0].Advice == "" {
					t.Errorf("%+v %v", r, err)
				}
			})
		}
		callers.Wait()
		<-time.After(58 * time.Second)
		if _, err := d.Examine(t.Context()); err != nil || examined != 1 {
			t.Errorf("examined %d times within a minute: %v", examined, err)
		}
		<-time.After(2 * time.Second)
		if _, err := d.Examine(t.Context()); err != nil || examined != 2 {
			t.Errorf("examined %d times after a minute: %v", examined, err)
		}
	})
}
