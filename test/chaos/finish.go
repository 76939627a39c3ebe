package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit/site"
)

// finishWithin is how long a recovered site may take to finish all work. A longer run gets half its
// duration in addition.
const finishWithin = 3 * time.Minute

const openSQL = `
SELECT (SELECT count(*) FROM events) - (SELECT count(*) FROM outcomes WHERE run = 0), (SELECT count(*) FROM outcomes
	WHERE run = 0 AND status = 'failed'),
  (SELECT count(*) FROM outbox WHERE sent_at IS NULL), (SELECT coalesce(sum(deliveries), 0) FROM spools)`

// waitUntilFinished waits until spools are empty and reported as empty, every event has an outcome
// and every change is sent. The checker reports what is missing.
func waitUntilFinished(ctx context.Context, s *site.Site, pool *pgxpool.Pool, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		var open, failed, changes, reported int
		options := time.Now()
		if err := pool.QueryRow(ctx, openSQL).Scan(&open, &failed, &changes,
			&reported); err != nil && ctx.Err() == nil {
			return err
		}
		spools, err := spooled(s)
		if err != nil || spools+open+failed+changes+reported == 0 && ctx.Err() == nil {
			return err
		}
		// Counting a million rows takes a while, and the processors need the database too.
		if !sleep(ctx, max(250*ms, 4*time.Since(options))) {
			return fmt.Errorf("not finished within %s: %d events without an outcome, %d failed, %d batches of changes "+
				"unsent, %d files in spools, %d deliveries reported in spools", within, open, failed, changes, spools,
				reported)
		}
	}
}

// spooled returns how many spool files with deliveries the gateways have. Each spool has one empty
// file in addition.
func spooled(s *site.Site) (n int, err error) {
	for _, g := range s.Gateways {
		files, err := filepath.Glob(filepath.Join(g.Spool, "*.spool"))
		if err != nil {
			return 0, err
		}
		n += max(0, len(files)-1)
	}
	return n, nil
}

// checkPromises waits until a recovered site has finished its work, for at most within. Zero means
// no wait. Then it compares all promises with the stored data.
func (r *run) checkPromises(ctx context.Context, within time.Duration) (*checker, error) {
	pool, err := postgres.Connect(ctx, postgres.Options{URL: r.site.Postgres.PrimaryURL(), AppName: "chaos",
		MaxConns: 4})
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	var notFinished error
	if within > 0 {
		finished := r.begin("finish all work")
		notFinished = waitUntilFinished(ctx, r.site, pool, within)
		finished()
	}
	if err := errors.Join(r.supervise(), r.watcher.end()); err != nil {
		return nil, err
	}
	c, err := newChecker(ctx, pool, r.traffic.endpoints, r.journal)
	if err != nil {
		return nil, err
	}
	if notFinished != nil {
		c.broken(wrongOutcome, "%v", notFinished)
	}
	for _, b := range r.watcher.regressions {
		c.broken(wentBack, "%s", b)
	}
	for _, w := range r.senders.wrong {
		c.broken(badAnswer, "%s", w)
	}
	compared := r.begin("compare journal, log and model")
	if err := c.check(ctx); err != nil {
		return nil, err
	}
	compared()
	options := r.begin("postern verify")
	c.verify(ctx, r.site)
	options()
	return c, r.panics()
}

// verify runs postern verify on the site and records its findings.
func (c *checker) verify(ctx context.Context, s *site.Site) {
	out, err := s.Postern(ctx, "verify", "--signatures", "--wait", "1m", "-o", "json")
	var report struct {
		Findings []struct {
			Kind  string
			Count int
			Items []struct{ Detail string }
		}
	}
	if bad := json.NewDecoder(strings.NewReader(out)).Decode(&report); bad != nil {
		c.broken(verified, "no report: %v\n%s", err, out)
		return
	}
	for _, f := range report.Findings {
		if f.Kind == "spool_torn" {
			continue // a killed gateway may leave one; the journal tells whether an acknowledged delivery is lost
		}
		for range f.Count {
			c.broken(verified, "%s: %s", f.Kind, f.Items[0].Detail)
		}
	}
	if err != nil && len(report.Findings) == 0 {
		c.broken(verified, "%v\n%s", err, out)
	}
}

// panics returns an error if a daemon has panicked. No fault may cause that.
func (r *run) panics() error {
	for _, d := range r.site.Daemons() {
		text, err := os.ReadFile(d.Log)
		if err != nil {
			return err
		}
		if at := strings.Index(string(text), "panic:"); at >= 0 {
			return fmt.Errorf("%s panicked: %.2000s", d.Name, text[at:])
		}
	}
	return nil
}
