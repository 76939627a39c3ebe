package notify_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
)

// knows waits until so many rows say who is told of what.
func (b *bundle) knows(t *testing.T, want int) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if n := len(b.db.Rows(t, `SELECT name FROM notifications`)); n != want {
			return fmt.Errorf("%d rows", n)
		}
		return nil
	})
}

// ends enters a run that ends now.
func (b *bundle) ends(t *testing.T, run int, status string) {
	t.Helper()
	b.db.Exec(t, fmt.Sprintf(`INSERT INTO runs (run, job, asked, who, reason, status, detail, counts, made_at, ended_at, updated_at) OVERRIDING SYSTEM VALUE VALUES (%d, 'replay', '{}', '', '', '%s', '', '{}', clock_now(), clock_now(), clock_now())`, run, status))
}

// A receiver that has a notice, and whose answer was lost, does not take one that says more of other runs for the same.
func TestMoreThanWasSentIsAnother(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, about: [failed_runs]}}`)
	held, hang := make(chan struct{}), make(chan struct{})
	n := 0
	b.answer = func() int {
		if n++; n == 1 {
			b.mu.Unlock()
			close(held)
			<-hang
			b.mu.Lock()
		}
		if n < 3 {
			return http.StatusBadGateway
		}
		return http.StatusOK
	}
	release := sync.OnceFunc(func() { close(hang) })
	t.Cleanup(release)
	b.watch(t)
	b.knows(t, 1)
	b.ends(t, 11, "failed")
	<-held
	b.ends(t, 12, "failed")
	release()
	b.wants(t, 0, "failed_runs happened 1", "failed_runs happened 2", "failed_runs happened 2")
	all := b.all(0)
	if all[0].id == all[1].id {
		t.Errorf("run 12 is told as what was said of run 11: %v", all)
	}
	if all[1].id != all[2].id {
		t.Errorf("the same is told as another: %v", all)
	}
}

// A run that fails while it is noted that none has is told all the same.
func TestRunThatFailsWhileTheMarkMoves(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, about: [failed_runs]}}`)
	stop := b.watch(t)
	b.knows(t, 1)
	stop()
	b.db.Exec(t, `UPDATE notifications SET mark = clock_now() - interval '20 minutes'`)
	b.db.Exec(t, `CREATE FUNCTION fails() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$BEGIN
  IF NOT EXISTS (SELECT FROM runs) THEN
    INSERT INTO runs (job, asked, who, reason, status, detail, counts, made_at, ended_at, updated_at) VALUES ('replay', '{}', '', '', 'failed', '', '{}', clock_now(), clock_now(), clock_now());
    PERFORM pg_sleep(0.2); -- longer than what ended must have settled
  END IF;
  RETURN NULL;
END$$`)
	b.db.Exec(t, `CREATE TRIGGER fails BEFORE UPDATE ON notifications FOR EACH STATEMENT EXECUTE FUNCTION fails()`)
	b.watch(t)
	b.wants(t, 0, "failed_runs happened 1")
}

// Where the database's clock was ahead and is right again, what is told is told at once, and what lasts is not taken to be over.
func TestClockThatWasAhead(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, about: [failed_runs, review_effects]}}`)
	b.hours = 24 * 30
	b.clock(t)
	b.effect(t, 1, "review")
	stop := b.watch(t)
	b.wants(t, 0, "review_effects began 1")
	b.noted(t, 1)
	stop()
	b.db.Exec(t, `UPDATE notifications SET taken_until = clock_now() + interval '1 minute'`)
	b.hours = 0
	b.clock(t)
	b.watch(t)
	testkit.Eventually(t, patience, func() error {
		return differ([]string{"true"}, b.db.Rows(t, `SELECT (mark <= clock_now())::text FROM notifications WHERE about = 'failed_runs'`))
	})
	b.ends(t, 11, "failed")
	b.wants(t, 1, "review_effects lasts 1", "failed_runs happened 1")
}
