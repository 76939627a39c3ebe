package faults_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/events"
)

// clock sets PostgreSQL's clock, as the schema reads it, off by an interval.
func (s *site) clock(t *testing.T, off string) {
	t.Helper()
	s.db.Exec(t, `CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp() + interval ''`+off+`'''`)
}

// Wherever PostgreSQL's clock jumps to, deliveries are stored above what a reader has read, in days that are made for them, and all are applied.
func TestPostgreSQLsClock(t *testing.T) {
	t.Parallel()
	for name, jumps := range map[string][]string{
		"an hour ahead and back": {"1 hour", "0"},
		"an hour back":           {"-1 hour"},
		"days ahead and back":    {"40 days", "0"}, // no day is made so far ahead
		"to and fro":             {"2 seconds", "-3 seconds", "1 day", "-1 day", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := build(t)
			s.start(t, calm)
			l := s.send(t)
			l.await(t, 10, "stored", stored)
			operator := s.db.Role(t, "operator")
			for _, off := range jumps {
				bound, err := events.FreezeBound(t.Context(), operator)
				if err != nil {
					t.Fatal(err)
				}
				read := s.below(t, bound)
				s.clock(t, off)
				l.await(t, 10, "stored", stored)
				if n := s.below(t, bound); n != read {
					t.Errorf("%s: %s events are below a bound that a reader had frozen when there were %s", off, n, read)
				}
			}
			l.stop()
			s.settled(t)
			l.check(t, s, false)
			s.appliedOnce(t)
		})
	}
}

// below is how many events lie up to an id.
func (s *site) below(t *testing.T, id int64) string {
	t.Helper()
	return s.db.Rows(t, `SELECT count(*)::text FROM events WHERE id <= $1`, id)[0]
}

// A gateway whose clock is wrong refuses what is signed with a time, says that its clock may be why, and takes everything again when the clock is right.
func TestGatewaysClock(t *testing.T) {
	t.Parallel()
	for off, reason := range map[time.Duration]string{time.Hour: "stale_timestamp", -time.Hour: "future_timestamp"} {
		t.Run(off.String(), func(t *testing.T) {
			t.Parallel()
			s := build(t)
			var wrong atomic.Int64
			s.start(t, func(tune *app.Tuning) {
				calm(tune)
				tune.Now = func() time.Time { return time.Now().Add(time.Duration(wrong.Load())) }
			})
			l := s.alone(t)
			l.one(t, "kept", 1, "stored", stored)
			wrong.Store(int64(off))
			l.one(t, "kept", 2, "refused", func(a *answer) bool { return a.status == 401 })
			l.one(t, "hub", 3, "stored", stored) // is signed without one
			if n := s.metric(t, "postern_rejections_total", reason); n != 1 {
				t.Errorf("%v refused for %s", n, reason)
			}
			s.store.Cut()
			l.one(t, "hub", 4, "spooled", spooled) // no wait of ours is measured by a clock that jumps
			s.store.Restore()
			wrong.Store(0)
			l.one(t, "kept", 2, "stored or spooled", func(a *answer) bool { return a.status == 200 })
			s.settled(t)
			l.answers = slices.DeleteFunc(l.answers, func(a answer) bool { return a.status == 401 })
			l.check(t, s, false)
		})
	}
}
