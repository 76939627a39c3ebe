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

// settleWithin is how long a healed site may take until nothing is under way any more; a longer run
// leaves more to do, for which there is half its time besides.
const settleWithin = 3 * time.Minute

const openSQL = `
SELECT (SELECT count(*) FROM events) - (SELECT count(*) FROM outcomes WHERE run = 0), (SELECT count(*) FROM outcomes
	WHERE run = 0 AND status = 'failed'),
  (SELECT count(*) FROM outbox WHERE sent_at IS NULL), (SELECT coalesce(sum(deliveries), 0) FROM spools)`

// settle waits until spools are empty and told to be, every event has an outcome and every change
// is sent. What is not so by then is told by the checker.
func settle(ctx context.Context, s *site.Site, pool *pgxpool.Pool, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		var open, failed, changes, told int
		asked := time.Now()
		if err := pool.QueryRow(ctx, openSQL).Scan(&open, &failed, &changes, &told); err != nil && ctx.Err() == nil {
			return err
		}
		spools, err := spooled(s)
		if err != nil || spools+open+failed+changes+told == 0 && ctx.Err() == nil {
			return err
		}
		// counting a million takes a while, and the processors need the database too
		if !sleep(ctx, max(250*ms, 4*time.Since(asked))) {
			return fmt.Errorf("not settled within %s: %d events without an outcome, %d failed, %d batches of changes "+
				"unsent, %d files in spools, %d deliveries told to be there", within, open, failed, changes, spools,
				told)
		}
	}
}

// spooled is how many files with deliveries the gateways' spools have; one in each is made ahead.
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

// examine settles a healed site, within so long (0: it is settled), and compares all that was
// promised with what there is.
func (r *run) examine(ctx context.Context, within time.Duration) (*checker, error) {
	pool, err := postgres.Connect(ctx, postgres.Options{URL: r.site.Postgres.PrimaryURL(), AppName: "chaos",
		MaxConns: 4})
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	var notSettled error
	if within > 0 {
		settled := r.begin("settle")
		notSettled = settle(ctx, r.site, pool, within)
		settled()
	}
	if err := errors.Join(r.supervise(), r.watcher.end()); err != nil {
		return nil, err
	}
	c, err := newChecker(ctx, pool, r.traffic.doors, r.journal)
	if err != nil {
		return nil, err
	}
	if notSettled != nil {
		c.broken(wrongOutcome, "%v", notSettled)
	}
	for _, b := range r.watcher.back {
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
	asked := r.begin("postern verify")
	c.verify(ctx, r.site)
	asked()
	return c, r.panics()
}

// verify has postern verify look at the same site.
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

// panics looks for what no fault may cause.
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
