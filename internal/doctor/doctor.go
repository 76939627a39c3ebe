// Package doctor looks at what Postern stands on: the configuration, this machine, PostgreSQL and NATS. It changes nothing, and says of each thing what was found and what to do.
package doctor

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/stream"
)

// Verdict is how a check ends.
type Verdict string

// The verdicts.
const (
	// OK: nothing is to be done.
	OK Verdict = "ok"
	// Warn: it works, and costs or risks something that is likely not meant.
	Warn Verdict = "warn"
	// Error: a promise does not hold, or something does not work.
	Error Verdict = "error"
)

// Check is one thing that was looked at.
type Check struct {
	// Name is where it lies and what it is: postgres.fsync.
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	// Found is what there is, Do what to do about it; "" where nothing is.
	Found string `json:"found"`
	Do    string `json:"do,omitzero"`
}

// Options say what to look at. What is nil is not looked at.
type Options struct {
	// Config is the configuration; ConfigError is what is wrong with it, each problem by itself.
	Config      *config.Config
	ConfigError error
	// Pool is connected as postern_operator; PoolError is why it cannot be.
	Pool      *pgxpool.Pool
	PoolError error
	// Conn reaches JetStream; ConnError is why it does not.
	Conn      *stream.Conn
	ConnError error
	// Monitor is the address of a NATS server's monitoring, e.g. http://127.0.0.1:8222; "": it is not told.
	Monitor string
	// DatabaseDisk is how many bytes the disk of PostgreSQL has, which SQL cannot ask; 0: it is not told.
	DatabaseDisk int64
	// Now is this machine's clock; nil: time.Now.
	Now func() time.Time
}

// Report is all that was looked at, in a fixed order.
type Report struct {
	Checks   []Check `json:"checks"`
	Errors   int     `json:"errors"`
	Warnings int     `json:"warnings"`
}

// examination is one under way.
type examination struct {
	Options
	report Report
	// databaseAhead is by how much the database's clock is ahead of this machine's, if that is known.
	databaseAhead time.Duration
	databaseKnown bool
	// sessions and syncNames are what one check has found and others need.
	sessions  int64
	syncNames string
}

// Examine looks at everything.
func Examine(ctx context.Context, o Options) *Report {
	if o.Now == nil {
		o.Now = time.Now
	}
	e := &examination{Options: o, report: Report{Checks: []Check{}}}
	e.configuration()
	e.machine()
	e.postgres(ctx)
	e.nats(ctx)
	return &e.report
}

func (e *examination) add(verdict Verdict, name, found, do string) {
	switch verdict {
	case Error:
		e.report.Errors++
	case Warn:
		e.report.Warnings++
	case OK:
		do = ""
	}
	e.report.Checks = append(e.report.Checks, Check{Name: name, Verdict: verdict, Found: found, Do: do})
}

// unless is OK if something holds, else the verdict.
func unless(holds bool, otherwise Verdict) Verdict {
	if holds {
		return OK
	}
	return otherwise
}
