package operations

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/events"
)

// DoctorReport is the state of the environment of a process.
type DoctorReport struct {
	// At is when this process checked.
	At       events.Instant `json:"at"`
	Checks   []doctor.Check `json:"checks"`
	Errors   int            `json:"errors"`
	Warnings int            `json:"warnings"`
}

// Doctor checks the environment of this process, at most every 5 seconds. Concurrent callers get
// the same report.
type Doctor struct {
	// Options returns what to check.
	Options func() doctor.Options

	mu      sync.Mutex
	current *doctorRun
}

const (
	// doctorAge is how long a report is returned again: a page that is read again after an outage
	// began must not show a report from before it.
	doctorAge = 5 * time.Second
	// doctorTimeout limits all checks together.
	doctorTimeout = 15 * time.Second
)

// doctorRun is one examination; done is closed when it has its report.
type doctorRun struct {
	done   chan struct{}
	report *DoctorReport
	// reportedAt is when the report was complete: a check may take longer than a report lasts.
	reportedAt time.Time
}

// isCurrent returns true if the run still checks, or if its report may be returned again.
func (r *doctorRun) isCurrent() bool { return r.report == nil || time.Since(r.reportedAt) < doctorAge }

// Examine returns a report that was complete at most 5 seconds ago. Errors: that of ctx.
func (d *Doctor) Examine(ctx context.Context) (*DoctorReport, error) {
	d.mu.Lock()
	run := d.current
	if run == nil || !run.isCurrent() {
		run = &doctorRun{done: make(chan struct{})}
		d.current = run
		d.mu.Unlock()
		return d.examine(ctx, run), nil
	}
	d.mu.Unlock()
	select {
	case <-run.done:
		if run.report == nil { // a panic, which the other caller reports
			return nil, errors.New("the environment could not be checked")
		}
		return run.report, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// examine makes the report of a run. Other callers wait for it, so it does not end with the first.
func (d *Doctor) examine(ctx context.Context, run *doctorRun) *DoctorReport {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), doctorTimeout,
		fmt.Errorf("not checked within %s", doctorTimeout))
	defer cancel()
	at := time.Now()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if run.report == nil {
			d.current = nil
		}
		close(run.done)
	}()
	r := doctor.Examine(ctx, d.Options())
	report := &DoctorReport{At: events.Instant{Time: at}, Checks: r.Checks, Errors: r.Errors, Warnings: r.Warnings}
	d.mu.Lock()
	run.report, run.reportedAt = report, time.Now()
	d.mu.Unlock()
	return report
}
