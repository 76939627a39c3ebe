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

// Concurrent callers share one report, also if the first of them disconnects. There is a new one
// before the console reads its page about health again, which is after 10 s.
func TestDoctor_callers_shareReport(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		options doctor.Options
		errors  int
	}{
		"no error": {doctor.Options{}, 0},
		"error":    {doctor.Options{PoolError: context.DeadlineExceeded}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				examined := 0
				d := &operations.Doctor{Options: func() doctor.Options {
					examined++
					<-time.After(time.Second) // the fake clock of the test's bubble
					return tc.options
				}}
				gone, cancel := context.WithCancel(t.Context())
				cancel()
				var callers sync.WaitGroup
				callers.Go(func() { _, _ = d.Examine(gone) }) // it may be the first, or get an error
				for range 20 {
					callers.Go(func() {
						if r, err := d.Examine(t.Context()); err != nil || r.Errors != tc.errors {
							t.Errorf("%+v %v", r, err)
						}
					})
				}
				callers.Wait()
				<-time.After(4 * time.Second)
				if _, err := d.Examine(t.Context()); err != nil || examined != 1 {
					t.Errorf("examined %d times before the report is old: %v", examined, err)
				}
				<-time.After(5 * time.Second)
				if _, err := d.Examine(t.Context()); err != nil || examined != 2 {
					t.Errorf("examined %d times after that: %v", examined, err)
				}
			})
		})
	}
}
