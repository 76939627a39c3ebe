package activity_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// newReporter returns a reporter of a process that began a minute ago.
func newReporter(t *testing.T, db *testkit.DB, id string) *activity.Reporter {
	t.Helper()
	return &activity.Reporter{Pool: db.Role(t, "operator"), Logger: testkit.Logger(t),
		Process: activity.Process{ID: id, Kind: activity.Gateway, Host: "here", PID: 7, Version: "v1"},
		State: func(context.Context) activity.State {
			return activity.State{NotReady: "no\x00 disk", ConfigLoaded: 10 * time.Second, CanReprocess: true,
				ConfigProblem: "a\x00 typo" + strings.Repeat("é", 2000)}
		},
		Counters: prometheus.NewRegistry(), Started: time.Now().Add(-time.Minute), Interval: 10 * time.Millisecond}
}

// start runs a reporter, and returns a function that stops it.
func start(t *testing.T, r *activity.Reporter) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return func() { cancel(); testkit.Must(t, <-ended) }
}

// A running process has a row with its times by the database's clock. When it stops, the row is
// gone.
func TestReporter_process_isListedUntilItStops(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	db.Exec(t, `INSERT INTO processes SELECT 'lost', 'dev', 'x', 1, '', '', now(), now() - interval '61 minutes', '',
		now(), '', '', false`)
	db.Exec(t, `INSERT INTO processes SELECT 'quiet', 'processor', 'x', 1, '', '', now(), now() - interval '59 minutes',
		'', now(), '', '', false`)
	r := newReporter(t, db, "one")
	stop := start(t, r)
	var found []activity.Process
	testkit.Eventually(t, 30*time.Second, func() error {
		page, err := activity.Processes(t.Context(), r.Pool, "", 10)
		if found = page.Items; err == nil && (len(found) != 2 || found[0].ID != "one") {
			err = errors.New("the process is not listed, or a lost one is")
		}
		return err
	})
	stop()
	one := found[0]
	if d := one.ReportedAt.Sub(one.StartedAt.Time); d < time.Minute || d > 2*time.Minute {
		t.Errorf("started %s before the report, want a minute", d)
	}
	if d := one.ConfigLoadedAt.Sub(one.StartedAt.Time); d != 10*time.Second {
		t.Errorf("loaded %s after the start, want 10 s", d)
	}
	one.StartedAt, one.ReportedAt, one.ConfigLoadedAt = events.Instant{}, events.Instant{}, events.Instant{}
	want := r.Process
	want.NotReady, want.CanReprocess, want.Reports = "no\ufffd disk", true, true
	want.ConfigProblem = "a\ufffd typo" + strings.Repeat("é", 995) // at most 2,000 bytes
	testkit.Equal(t, "process", want, one)
	if quiet := found[1]; quiet.ID != "quiet" || quiet.Reports {
		t.Errorf("a process that does not report: %+v", quiet)
	}
	testkit.Equal(t, "processes after the stop", []string{"quiet"}, db.QueryStrings(t, `SELECT id FROM processes`))
}

// The list has an order that does not depend on the random ids, and goes on after a cursor.
func TestProcesses_pages_followKindAndHost(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	db.Exec(t, `INSERT INTO processes SELECT id, kind, host, 1, '', '', now(), now(), '', now(), '', '', false FROM
		(VALUES
		('a', 'processor', 'x'), ('b', 'gateway', 'y'), ('c', 'gateway', 'x'), ('d', 'gateway', 'y'))
		v (id, kind, host)`)
	operator, cursor, ids := db.Role(t, "operator"), "", ""
	for range 4 {
		page, err := activity.Processes(t.Context(), operator, cursor, 1)
		testkit.Must(t, err)
		ids, cursor = ids+page.Items[0].ID, page.Next
	}
	if ids != "cbda" {
		t.Errorf("order %q, want cbda", ids)
	}
	if _, err := activity.Processes(t.Context(), operator, events.MakeCursor(int64(7)), 1); !errors.Is(err,
		events.ErrInvalid) {
		t.Errorf("cursor of another list: %v", err)
	}
}
