package admin_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/testkit"
)

// told is an answer as a caller sees it.
func told(res *httptest.ResponseRecorder) string {
	return fmt.Sprint(res.Code, " ", res.Header().Get("Content-Type"), " ", res.Body)
}

// Each route that changes something is carried out once under a key, and answers the same again; another request under the key is refused.
func TestEveryChangeIsMadeOnceUnderAKey(t *testing.T) {
	t.Parallel()
	b := changing(t)
	for _, c := range changes {
		c.path = strings.NewReplacer("RUN", b.db.Rows(t, `SELECT coalesce(max(run), 0)::text FROM runs`)[0]).Replace(c.path)
		first := asksFor(b.handler, "/api/v1"+c.path, c.body, `"key"`, "")
		state := b.state(t)
		if first.Code != 200 || first.Header().Get("Idempotency-Replayed") != "" {
			t.Errorf("%s: %s", c.route, told(first))
		}
		again := asksFor(b.handler, "/api/v1"+c.path, c.body, "key", "")
		if diff := cmp.Diff(told(first), told(again)); diff != "" || again.Header().Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s again: %v %s", c.route, again.Header(), diff)
		}
		if other := asksFor(b.handler, "/api/v1"+c.path, c.body+" ", "key", ""); other.Code != http.StatusUnprocessableEntity {
			t.Errorf("%s with another body: %s", c.route, told(other))
		}
		if other := asksFor(b.handler, "/api/v1"+c.path+"?x=y", c.body, "key", ""); other.Code != http.StatusUnprocessableEntity {
			t.Errorf("%s with another query: %s", c.route, told(other))
		}
		if bad := asksFor(b.handler, "/api/v1"+c.path, c.body, `"key`, ""); bad.Code != http.StatusBadRequest || !strings.Contains(bad.Body.String(), "write it in quotes") {
			t.Errorf("%s with half a key: %s", c.route, told(bad))
		}
		if diff := cmp.Diff(state, b.state(t)); diff != "" {
			t.Errorf("%s is done again: %s", c.route, diff)
		}
	}
}

// Whose key it is counts: another token's is another.
func TestAKeyIsOfItsToken(t *testing.T) {
	t.Parallel()
	b := changing(t)
	h, _, operator := b.guarded(t, admin.Options{})
	for i, authorization := range []string{"", "Bearer " + operator, "", "Bearer " + operator} {
		res := asksFor(h, "/api/v1/replays", `{"source": "stripe"}`, "k", authorization)
		if replayed := res.Header().Get("Idempotency-Replayed") == "true"; res.Code != 200 || replayed != (i > 1) {
			t.Errorf("%d: replayed %t: %s", i, replayed, told(res))
		}
	}
	if runs := b.db.Rows(t, `SELECT run::text FROM runs`); len(runs) != 2 {
		t.Errorf("%d runs", len(runs))
	}
}

// A refusal is an answer like any other; what only asks, and what failed for our sake, is done anew.
func TestWhatIsKeptUnderAKey(t *testing.T) {
	t.Parallel()
	b := changing(t)
	ask := func(path, body, key string) *httptest.ResponseRecorder {
		return asksFor(b.handler, "/api/v1"+path, body, key, "")
	}
	missing := ask("/runs/1/pause", "{}", "a")
	if ask("/replays", `{"source": "stripe"}`, "b"); missing.Code != 404 {
		t.Errorf("%s", told(missing))
	}
	if again := ask("/runs/1/pause", "{}", "a"); told(again) != told(missing) || again.Header().Get("Idempotency-Replayed") != "true" {
		t.Errorf("refused, and then: %s", told(again))
	}
	if now := ask("/runs/1/pause", "{}", "c"); now.Code != 200 {
		t.Errorf("under another key: %s", told(now))
	}
	const preview = `{"source": "stripe", "preview": true, "exact": true}`
	for _, events := range []string{`"events":1,`, `"events":2,`} {
		if res := ask("/replays", preview, "d"); res.Code != 200 || !strings.Contains(res.Body.String(), events) || res.Header().Get("Idempotency-Replayed") != "" {
			t.Errorf("a preview: %s", told(res))
		}
		b.append(t, "stripe", "another")
	}
	if res := ask("/replays", `{"source": "stripe"}`, "d"); res.Code != http.StatusUnprocessableEntity {
		t.Errorf("the key of a preview: %s", told(res))
	}
	b.db.Exec(t, `ALTER TABLE runs RENAME TO elsewhere`)
	if res := ask("/replays", `{"source": "stripe"}`, "e"); res.Code != 500 {
		t.Errorf("%s", told(res))
	}
	b.db.Exec(t, `ALTER TABLE elsewhere RENAME TO runs`)
	if res := ask("/replays", `{"source": "stripe"}`, "e"); res.Code != 200 || res.Header().Get("Idempotency-Replayed") != "" {
		t.Errorf("after a fault: %s", told(res))
	}
}

// Where the answer cannot be kept, nothing is done.
func TestNoChangeWithoutItsAnswer(t *testing.T) {
	t.Parallel()
	b := changing(t)
	before := b.state(t)
	b.db.Exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'the disk is full' USING ERRCODE = '53100'; END$$;
		CREATE TRIGGER refuse BEFORE UPDATE ON idempotency_keys FOR EACH ROW WHEN (NEW.status IS NOT NULL) EXECUTE FUNCTION refuse()`)
	for _, path := range []string{"/replays", "/reconciliations", "/rebuilds", "/schedules/nightly/pause"} {
		body := `{"source": "stripe"}`
		if strings.HasPrefix(path, "/schedules") {
			body = ""
		}
		if res := asksFor(b.handler, "/api/v1"+path, body, "k", ""); res.Code != 503 {
			t.Errorf("%s: %s", path, told(res))
		}
	}
	if diff := cmp.Diff(before, b.state(t)); diff != "" {
		t.Error(diff)
	}
}

// While a request is under way, the same again is told so; afterwards it gets the answer.
func TestInFlight(t *testing.T) {
	t.Parallel()
	b := changing(t)
	lock, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Rollback(context.Background()) }()
	if _, err := lock.Exec(t.Context(), `LOCK TABLE runs IN EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	ask := func() *httptest.ResponseRecorder {
		return asksFor(b.handler, "/api/v1/replays", `{"source": "stripe"}`, "k", "")
	}
	first := make(chan *httptest.ResponseRecorder, 1)
	go func() { first <- ask() }()
	testkit.Eventually(t, 30*time.Second, func() error {
		if n := b.db.Rows(t, `SELECT count(*)::text FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))`, lock.Conn().PgConn().PID()); n[0] != "1" {
			return errors.New("nobody waits")
		}
		return nil
	})
	if res := ask(); res.Code != http.StatusConflict || res.Header().Get("Retry-After") == "" {
		t.Errorf("beside the first: %s", told(res))
	}
	if err := lock.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	answer := told(<-first)
	if res := ask(); told(res) != answer || res.Code != 200 {
		t.Errorf("%s\nthen %s", answer, told(res))
	}
}

// However many ask at once, there is one run.
func TestManyUnderOneKey(t *testing.T) {
	t.Parallel()
	b := changing(t)
	var mu sync.Mutex
	answers := map[string]int{}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for {
				res := asksFor(b.handler, "/api/v1/replays", `{"source": "stripe"}`, "k", "")
				if res.Code == http.StatusConflict {
					continue
				}
				mu.Lock()
				defer mu.Unlock()
				answers[told(res)]++
				return
			}
		})
	}
	wg.Wait()
	if runs := b.db.Rows(t, `SELECT run::text FROM runs`); len(runs) != 1 || len(answers) != 1 {
		t.Errorf("%d runs, answers %v", len(runs), answers)
	}
}
