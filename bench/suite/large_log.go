package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/postern-gateway/postern/bench/load"
)

// The targets of LargeLog: commands of Postern, and psql with the same rows.
const (
	Preview   = "preview"
	Exact     = "exact"
	PsqlCount = "psql-count"
	Export    = "export"
	PsqlCopy  = "psql-copy"
	// ExportFew exports a tenth, to show whether memory grows with the number of events.
	ExportFew = "export-a-tenth"
)

// chosen is the pattern of event types to replay. It matches all events, and must be compared with
// each.
const chosen = "customer.*"

const psqlCountSQL = `
SELECT count(*), count(DISTINCT (source, account, object_type, object_id)) FILTER (WHERE object_id <> ''), min(id),
	max(id)
FROM postern.events WHERE event_type LIKE 'customer.%'`

const psqlCopySQL = `COPY (SELECT * FROM postern.events WHERE id >= %d AND id < %d ORDER BY id) TO STDOUT`

// LargeLog measures commands on a log of many events. It compares the preview of a replay,
// estimated and exact, with a count by psql. It compares an uncompressed export of a part with a
// COPY by psql.
func (s *Suite) LargeLog(ctx context.Context, row string, rounds, events, exported int) (samples []Sample, err error) {
	database, err := s.grow(ctx, events, events)
	if database != "" {
		defer func() { err = errors.Join(err, s.m.DropDatabase(context.WithoutCancel(ctx), database)) }()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	l := &large{s: s, database: database, events: int64(events)}
	if err := l.chooseRange(ctx, exported); err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	targets := []string{Preview, Exact, PsqlCount, ExportFew, Export, PsqlCopy}
	for round := range rounds {
		for i := range targets {
			target := targets[(i+round)%len(targets)]
			sample, err := l.runCommand(ctx, target)
			if err != nil {
				return samples, fmt.Errorf("%s, %s: %w", row, target, err)
			}
			sample.Row, sample.Target, sample.Round = row, target, round
			samples = append(samples, sample)
			s.log.Info(row, "target", target, "round", round+1, "of", rounds, "seconds", sample.Seconds, "rate",
				int(sample.Rate), "more", sample.More)
		}
	}
	return samples, nil
}

// large is a database with many events.
type large struct {
	s        *Suite
	database string
	file     string
	events   int64
	// The exported events have ids from from, inclusive, to to, exclusive. few is the end of a
	// tenth of them.
	from, to, few   int64
	exported, tenth int64
}

const nthSQL = `SELECT coalesce((SELECT id FROM postern.events ORDER BY id OFFSET $1 LIMIT 1), (SELECT max(id) + 1
	FROM postern.events))`

// chooseRange finds the ids between which there are about exported events. A time on the command
// line selects whole milliseconds.
func (l *large) chooseRange(ctx context.Context, exported int) (err error) {
	conn, err := l.s.m.Connect(ctx, l.database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for n, id := range map[int]*int64{0: &l.from, exported / 10: &l.few, exported: &l.to} {
		if err := conn.QueryRow(ctx, nthSQL, n).Scan(id); err != nil {
			return err
		}
		*id = *id >> 20 << 20 // the time of an id is its milliseconds
	}
	for id, n := range map[int64]*int64{l.to: &l.exported, l.few: &l.tenth} {
		if err := conn.QueryRow(ctx, "SELECT count(*) FROM postern.events WHERE id >= $1 AND id < $2", l.from,
			id).Scan(n); err != nil {
			return err
		}
	}
	l.file, err = l.s.configure(l.s.m.DatabaseURL(l.database), 1)
	return err
}

// runCommand runs the program of one target and measures it.
func (l *large) runCommand(ctx context.Context, target string) (sample Sample, err error) {
	var out io.Writer = io.Discard
	file, n := "", l.events
	program, args := "postern", []string{"--config", l.file}
	until := func(id int64) string { return time.UnixMilli(id >> 20).UTC().Format(time.RFC3339Nano) }
	switch target {
	case Preview:
		args = append(args, "replay", "--type", chosen, "--preview")
	case Exact:
		args = append(args, "replay", "--type", chosen, "--preview", "--exact")
	case PsqlCount:
		program, args = "psql", []string{"-XAtq", "-c", psqlCountSQL, l.s.m.DatabaseURL(l.database)}
	case Export:
		file, n = "all.ndjson", l.exported
		args = append(args, "export", "--until", until(l.to))
	case ExportFew:
		file, n = "few.ndjson", l.tenth
		args = append(args, "export", "--until", until(l.few))
	case PsqlCopy:
		file, n = "copy.txt", l.exported
		program, args = "psql", []string{"-XAtq", "-c", fmt.Sprintf(psqlCopySQL, l.from, l.to),
			l.s.m.DatabaseURL(l.database), "-o"}
	}
	if file != "" {
		file = filepath.Join(l.s.m.Dir, file)
		args = append(args, file)
		defer func() { err = errors.Join(err, os.Remove(file)) }()
	}
	ran, err := l.s.m.Tool(ctx, out, program, args...)
	if err != nil {
		return sample, err
	}
	sample = toolSample(ran, n)
	if file != "" {
		info, err := os.Stat(file)
		if err != nil {
			return sample, err
		}
		sample.more("file_bytes_per_event", float64(info.Size())/float64(n))
	}
	return sample, nil
}

func toolSample(ran load.Ran, events int64) Sample {
	sample := Sample{Events: events, Seconds: ran.Took.Seconds()}
	sample.Rate = float64(events) / sample.Seconds
	sample.more("peak_mib", mib(ran.Peak))
	sample.more("seconds", sample.Seconds)
	return sample
}
