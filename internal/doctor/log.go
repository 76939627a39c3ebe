package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/providerapi"
)

// checkLog checks the partitions of the log.
func (e *examination) checkLog(ctx context.Context) error {
	unguarded := 0
	var name, owner string
	var triggers int64
	if err := postgres.ForEach(ctx, e.Pool, unguardedSQL, nil, []any{&name, &triggers, &owner}, func() error {
		unguarded++
		e.add(Error, "postgres.append_only", fmt.Sprintf("table %s, owned by %s, has %d of the 2 triggers that "+
			"prevent changes", name, owner, triggers),
			fmt.Sprintf("ALTER TABLE postern.%s ENABLE TRIGGER ALL; ALTER TABLE postern.%s OWNER TO "+
				"postern_maintenance; then postern verify, because the table may have been changed", name, name))
		return nil
	}); err != nil {
		return err
	}
	if unguarded == 0 {
		e.add(OK, "postgres.append_only", "the log's partitions reject changes, as they should", "")
	}
	if err := e.checkPartitions(ctx); err != nil {
		return err
	}
	return e.checkRetention(ctx)
}

// Processors create partitions 8 days ahead, and check once a minute.
const (
	partitionsWarn  = 6 * 24 * time.Hour
	partitionsError = 24 * time.Hour
)

func (e *examination) checkPartitions(ctx context.Context) error {
	until, left, err := events.PartitionsUntil(ctx, e.Pool)
	if err != nil {
		return err
	}
	verdict := verdictFor(left < partitionsError, left < partitionsWarn)
	e.add(verdict, "postgres.partitions", fmt.Sprintf("the log has partitions until %s, %.1f days ahead",
		events.Instant{Time: until}, left.Hours()/24), "start a processor, which creates them 8 days ahead, and "+
		"search its log for maintenance; a gateway creates one when needed, more slowly")
	return nil
}

// retentionGrace is how long a day of the log may exist longer than retention.bodies. It is more
// than a day, because retention runs once a day.
const retentionGrace = 3 * 24 * time.Hour

func (e *examination) checkRetention(ctx context.Context) error {
	if e.Config == nil || e.Config.Retention.Bodies == 0 {
		return nil
	}
	var end int64
	if err := e.Pool.QueryRow(ctx, oldestDaySQL).Scan(&end); err != nil || end == 0 {
		return err
	}
	age := e.Now().Add(e.databaseAhead).Sub(events.Time(end))
	allowed := time.Duration(e.Config.Retention.Bodies) * 24 * time.Hour
	e.add(okIf(age < allowed+retentionGrace, Warn), "postgres.retention", fmt.Sprintf("the oldest day of the log "+
		"ended %.0f days ago; retention.bodies is %d days", max(0, age.Hours()/24), e.Config.Retention.Bodies),
		"postern retention show gives the reason: a failed run (postern runs list --job retention), or unfinished "+
			"events; postern verify lists those")
	return nil
}

// apiSourcesSQL returns the sources whose API a process reads.
const apiSourcesSQL = `SELECT DISTINCT s.name, s.number FROM rate_budgets b JOIN sources s ON s.number = b.source
	ORDER BY s.name`

// checkEventDelays compares the clock of a source's events with PostgreSQL's, for each source with
// an API.
func (e *examination) checkEventDelays(ctx context.Context) error {
	type source struct {
		Name   string
		Number int32
	}
	sources, err := postgres.Collect(ctx, e.Pool, pgx.RowToStructByPos[source], apiSourcesSQL)
	if err != nil {
		return err
	}
	for _, s := range sources {
		least, ok, err := providerapi.ReadEventDelay(ctx, e.Pool, s.Number)
		if err != nil {
			return err
		}
		if !ok {
			continue // no recent events to compare
		}
		found := fmt.Sprintf("events of source %s arrive at least %s after the provider's time", s.Name,
			least.Round(time.Millisecond))
		if least < 0 {
			found = fmt.Sprintf("events of source %s have times up to %s ahead of PostgreSQL's clock", s.Name,
				(-least).Round(time.Millisecond))
		}
		allowed := providerapi.EventDelayAllowed
		e.add(okIf(least.Abs() <= allowed, Warn), "postgres.event_delay", fmt.Sprintf("%s; refetches allow for %s",
			found, allowed), "check PostgreSQL's clock. If it is right, the provider delivers late or its clock is "+
			"wrong: an object that changes while it is refetched may keep the older state until it changes again. "+
			"postern reconcile "+s.Name+" --objects finds such objects: run it on a schedule")
	}
	return nil
}

// checkProcessor checks whether a processor is running.
func (e *examination) checkProcessor(ctx context.Context) error {
	republisher, err := processor.ReadRepublisher(ctx, e.Pool)
	if err != nil {
		return err
	}
	if republisher.Process == "" {
		unapplied, err := processor.CountUnapplied(ctx, e.Pool, 0, processor.MaxPendingCount)
		if err != nil {
			return err
		}
		e.add(Warn, "postgres.processor", fmt.Sprintf("no processor is running, and %s have no outcome",
			countOf(int(unapplied.Count), "event")), "start a processor")
		return nil
	}
	e.add(OK, "postgres.processor", republisher.Process+" runs the republisher; postern stream status shows its "+
		"progress", "")
	return nil
}
