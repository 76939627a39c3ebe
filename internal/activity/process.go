package activity

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// The kinds of processes.
const (
	Gateway   = "gateway"
	Processor = "processor"
	Serve     = "serve"
	Dev       = "dev"
)

// Process is a process of the instance, as it reported itself.
type Process struct {
	// ID is a random name of this start of the process.
	ID string `json:"id"`
	// Kind is gateway, processor, serve or dev. The last two are both in one process.
	Kind string `json:"kind"`
	// Host is the name of the machine, and PID the number of the process there.
	Host string `json:"host"`
	PID  int    `json:"pid"`
	// Version is the version of the program with its commit.
	Version string `json:"version"`
	// AdminAddress is the address of its admin API, as the process bound it.
	AdminAddress string         `json:"admin_address"`
	StartedAt    events.Instant `json:"started_at"`
	// ReportedAt is the time of the last report. A process reports every 10 seconds, while it can
	// reach the database.
	ReportedAt events.Instant `json:"reported_at"`
	// NotReady is the reason why the process cannot do its work; "" if it can. It is as old as the
	// last report.
	NotReady string `json:"not_ready"`
	// ConfigLoadedAt is when it loaded its current sources and rules. Processes with the same
	// sources, schedules, rules, destinations and alerts have the same ConfigDigest, which covers
	// no secret.
	ConfigLoadedAt events.Instant `json:"config_loaded_at"`
	ConfigDigest   string         `json:"config_digest"`
	// ConfigProblem is the reason why the process does not use its current configuration file: an
	// error of the last reload, or settings that need a restart. Empty without a problem.
	ConfigProblem string `json:"config_problem"`
	// CanReprocess: it can reprocess rejections, because it has the signing secrets and may append.
	CanReprocess bool `json:"can_reprocess"`
	// Reports: its last report is not older than 30 seconds.
	Reports bool `json:"reports"`
}

// State is what may change while a process runs.
type State struct {
	// NotReady is the reason why the process cannot do its work; "" if it can.
	NotReady string
	// ConfigLoaded is the time from the start of the process until it loaded its configuration.
	ConfigLoaded time.Duration
	ConfigDigest string
	// ConfigProblem is the reason why the process does not use its current configuration file.
	ConfigProblem string
	CanReprocess  bool
}

const (
	// reportProcessSQL takes all times from the database's clock. $7 is the age of the process.
	reportProcessSQL = `
INSERT INTO processes AS p (id, kind, host, pid, version, admin_address, started_at, reported_at, not_ready,
	config_loaded_at, config_digest, can_reprocess, config_problem)
SELECT $1, $2, $3, $4, $5, $6, now.at - $7::interval, now.at, $8, now.at - $7::interval + $9::interval, $10, $11, $12
FROM (SELECT clock_now() AS at) now
ON CONFLICT (id) DO UPDATE SET reported_at = excluded.reported_at, not_ready = excluded.not_ready,
	config_loaded_at = p.started_at + $9::interval, config_digest = excluded.config_digest,
	can_reprocess = excluded.can_reprocess, config_problem = excluded.config_problem`

	// deleteLostProcessesSQL reads the whole table, which has a row for each process.
	deleteLostProcessesSQL = `DELETE FROM processes WHERE reported_at < clock_now() - interval '1 hour'`

	deleteProcessSQL = `DELETE FROM processes WHERE id = $1`

	processesSQL = `
SELECT id, kind, host, pid, version, admin_address, started_at, reported_at, not_ready, config_loaded_at, config_digest,
	config_problem, can_reprocess, reported_at >= clock_now() - interval '30 seconds'
FROM processes WHERE (kind, host, id) > ($1, $2, $3) ORDER BY kind, host, id LIMIT $4`
)

// reportProcess writes the row of a process.
func (r *Reporter) reportProcess(ctx context.Context) error {
	p, s := r.Process, r.State(ctx)
	_, err := r.Pool.Exec(ctx, reportProcessSQL, p.ID, p.Kind, p.Host, p.PID, p.Version, p.AdminAddress,
		time.Since(r.Started), events.SanitizeText(s.NotReady), s.ConfigLoaded, s.ConfigDigest, s.CanReprocess,
		truncate(events.SanitizeText(s.ConfigProblem)))
	if err == nil {
		_, err = r.Pool.Exec(ctx, deleteLostProcessesSQL)
	}
	if err != nil {
		return fmt.Errorf("report this process: %w", err)
	}
	return nil
}

// maxProblem is the maximum number of bytes of a stored problem.
const maxProblem = 2000

func truncate(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxProblem)], "")
}

// processPosition is the position of a process in a list: its kind, host and id.
type processPosition [3]string

// Processes returns a page of the processes, by kind and host. Errors: events.ErrInvalid.
func Processes(ctx context.Context, db postgres.DB, cursor string, limit int) (events.Page[Process], error) {
	return events.ReadPage("list processes", cursor, limit, processPosition{},
		func(p *Process) processPosition { return processPosition{p.Kind, p.Host, p.ID} },
		func(after processPosition, limit int) ([]Process, error) {
			return postgres.Collect(ctx, db, pgx.RowToStructByPos[Process], processesSQL, after[0], after[1], after[2],
				limit)
		})
}
