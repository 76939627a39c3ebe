// Package doctor checks what Postern depends on: the configuration, this machine, PostgreSQL and
// NATS. The command postern doctor calls it. It changes nothing. Each check reports what was found
// and what to do.
package doctor

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/stream"
)

// Verdict is the result of a check.
type Verdict string

// The verdicts.
const (
	// OK: no action is needed.
	OK Verdict = "ok"
	// Warn: the item works, but it has a cost or a risk that is probably not intended.
	Warn Verdict = "warn"
	// Error: a guarantee does not hold, or something does not work.
	Error Verdict = "error"
)

// Check is one checked item.
type Check struct {
	// Name is the area and the item, e.g. postgres.fsync.
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	// Found is the current state. Advice is what to do about it; "" where nothing is needed.
	Found  string `json:"found"`
	Advice string `json:"do,omitzero"`
}

// Options say what to check. A nil value is not checked.
type Options struct {
	// Config is the configuration; ConfigError joins its problems.
	Config      *config.Config
	ConfigError error
	// Pool is connected as postern_operator; PoolError is the reason why it is not.
	Pool      *pgxpool.Pool
	PoolError error
	// Conn is the connection to JetStream; ConnError is the reason why there is none.
	Conn      *stream.Conn
	ConnError error
	// Monitor is the monitoring address of a NATS server, e.g. http://127.0.0.1:8222; "": not
	// given.
	Monitor string
	// Spool is the spool of this process; nil for none.
	Spool *spool.Spool
	// DatabaseDisk is the size of PostgreSQL's disk in bytes, which SQL cannot read; 0: not given.
	DatabaseDisk int64
	// Now is this machine's clock; nil: time.Now.
	Now func() time.Time
}

// Report lists all checks, in a fixed order.
type Report struct {
	Checks   []Check `json:"checks"`
	Errors   int     `json:"errors"`
	Warnings int     `json:"warnings"`
}

// examination is the state of one Examine call.
type examination struct {
	Options
	report Report
	// databaseAhead is how far the database's clock is ahead of this machine's, if databaseKnown is
	// true.
	databaseAhead time.Duration
	databaseKnown bool
	// sessions is the number of connections to PostgreSQL, and syncNames the setting
	// synchronous_standby_names. One check reads them, and others use them.
	sessions  int64
	syncNames string
}

// Examine runs all checks.
func Examine(ctx context.Context, o Options) *Report {
	if o.Now == nil {
		o.Now = time.Now
	}
	e := &examination{Options: o, report: Report{Checks: []Check{}}}
	e.checkConfig()
	e.checkOpenFiles()
	e.checkPostgres(ctx)
	e.checkNATS(ctx)
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
	e.report.Checks = append(e.report.Checks, Check{Name: name, Verdict: verdict, Found: found, Advice: do})
}

// okIf returns OK if the condition holds, else the given verdict.
func okIf(condition bool, otherwise Verdict) Verdict {
	if condition {
		return OK
	}
	return otherwise
}

// verdictFor returns Error if isError holds, else Warn if isWarning holds, else OK.
func verdictFor(isError, isWarning bool) Verdict {
	if isError {
		return Error
	}
	return okIf(!isWarning, Warn)
}
