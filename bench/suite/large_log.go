package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// The targets of largeLog: commands of Postern, and psql with the same rows.
const (
	previewTarget   = "preview"
	exactTarget     = "exact"
	psqlCountTarget = "psql-count"
	exportTarget    = "export"
	psqlCopyTarget  = "psql-copy"
	// exportFewTarget exports a tenth, to show whether memory grows with the number of events.
	exportFewTarget = "export-a-tenth"
)

// chosen is the pattern of event types to replay. It matches all events, and must be compared with
// each.
const chosen = "customer.*"

const psqlCountSQL = `
SELECT count(*), count(DISTINCT (source, account, object_type, object_id)) FILTER (WHERE object_id <> ''), min(id),
	max(id)
FROM postern.events WHERE event_type LIKE 'customer.%'`

const psqlCopySQL = `COPY (SELECT * FROM postern.events WHERE id >= %d AND id < %d ORDER BY id) TO STDOUT`

// largeLog measures commands on a log of many events. It compares the preview of a replay,
// estimated and exact, with a count by psql. It compares an uncompressed export of a part with a
// COPY by psql.
func (s *Suite) largeLog(ctx context.Context, row string, rounds, events, exported int) (_ []Sample, err error) {
	database, err := s.grow(ctx, events, events)
	defer s.drop(ctx, database, &err)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	l := &large{s: s, database: database, events: int64(events)}
	if err := l.chooseRange(ctx, exported); err != nil {
		return nil, fmt.Errorf("%s: %w", row, err)
	}
	targets := []string{previewTarget, exactTarget, psqlCountTarget, exportFewTarget, exportTarget, psqlCopyTarget}
	return s.inTurn(row, rounds, targets,
		func(target string) (Sample, error) { return l.runCommand(ctx, target) })
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
	file, n := "", l.events
	program, args := "postern", []string{"--config", l.file}
	until := func(id int64) string { return time.UnixMilli(id >> 20).UTC().Format(time.RFC3339Nano) }
	switch target {
	case previewTarget:
		args = append(args, "replay", "--type", chosen, "--preview")
	case exactTarget:
		args = append(args, "replay", "--type", chosen, "--preview", "--exact")
	case psqlCountTarget:
		program, args = "psql", []string{"-XAtq", "-c", psqlCountSQL, l.s.m.DatabaseURL(l.database)}
	case exportTarget:
		file, n = "all.ndjson", l.exported
		args = append(args, "export", "--until", until(l.to))
	case exportFewTarget:
		file, n = "few.ndjson", l.tenth
		args = append(args, "export", "--until", until(l.few))
	case psqlCopyTarget:
		file, n = "copy.txt", l.exported
		program, args = "psql", []string{"-XAtq", "-c", fmt.Sprintf(psqlCopySQL, l.from, l.to),
			l.s.m.DatabaseURL(l.database), "-o"}
	}
	if file != "" {
		file = filepath.Join(l.s.m.Dir, file)
		args = append(args, file)
		defer func() { err = errors.Join(err, os.Remove(file)) }()
	}
	ran, err := l.s.m.Tool(ctx, io.Discard, program, args...)
	if err != nil {
		return sample, err
	}
	sample = rated(n, ran.Took.Seconds())
	sample.more("peak_mib", mib(ran.Peak))
	sample.more("seconds", sample.Seconds)
	if file != "" {
		info, err := os.Stat(file)
		if err != nil {
			return sample, err
		}
		sample.more("file_bytes_per_event", float64(info.Size())/float64(n))
	}
	return sample, nil
}
