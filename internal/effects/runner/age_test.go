package runner_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/testkit"
)

// What waited for its turn longer than its retries may take, as while nobody ran, has all its tries: their age counts from the first. After that a person sees to it, also where the other side has no time.
func TestAgeCountsFromTheFirstAttempt(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusTooManyRequests, http.StatusInternalServerError} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			b := attended(t, `[{name: mail, to: sink, path: "/mail", retry: {first: 50ms, longest: 50ms, attempts: 1000}}]`)
			b.to(t, scriptedAnswer{status: status})
			b.plan(t, 1, 1)
			b.db.Exec(t, `UPDATE effects SET planned_at = clock_now() - interval '25 h'`)
			stop := b.run(t, "a", b.pool)
			testkit.Eventually(t, patience, func() error {
				if v := b.show(t); v.State == "review" || len(v.Steps) == 0 || v.Steps[0].Attempts < 3 {
					return fmt.Errorf("%+v", v)
				}
				return nil
			})
			b.db.Exec(t, `UPDATE effects SET tried_since = tried_since - interval '25 h'`)
			b.becomes(t, `SELECT state || ' ' || (reason LIKE 'step mail: after 25h0m%: status %') FROM effects`, "review true")
			stop()

			b.to(t, scriptedAnswer{status: status}, scriptedAnswer{status: http.StatusOK})
			if err := b.retry(t); err != nil {
				t.Fatal(err)
			}
			b.db.Exec(t, `UPDATE effects SET due = due - interval '25 h', updated_at = updated_at - interval '25 h'`)
			b.run(t, "b", b.pool)
			if got := b.settled(t); got["done"] != 1 {
				t.Errorf("%v: %s", got, b.show(t).Reason)
			}
		})
	}
}

// Nor does the age of one step count for the next.
func TestAgeIsOfAStep(t *testing.T) {
	t.Parallel()
	b := attended(t, twoSteps)
	b.to(t, scriptedAnswer{status: http.StatusInternalServerError}, scriptedAnswer{status: http.StatusOK, body: `{"id": 1}`}, scriptedAnswer{status: http.StatusInternalServerError}, scriptedAnswer{status: http.StatusOK})
	b.rules.Named("follow").Steps[0].Retry.First = time.Hour
	b.plan(t, 1, 1)
	b.run(t, "a", b.pool)
	b.becomes(t, `SELECT state FROM effects`, "failed")
	b.db.Exec(t, `UPDATE effects SET due = clock_now(), tried_since = tried_since - interval '25 h'`)
	if got := b.settled(t); got["done"] != 1 {
		t.Errorf("%v: %s", got, b.show(t).Reason)
	}
}

// What a stop kept from being sent was not tried: it is no person's, and its age has not begun.
func TestAStopIsNoAttempt(t *testing.T) {
	t.Parallel()
	b := attended(t, `[{name: mail, to: sink, path: "/mail"}]`)
	var calls atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) }))
	t.Cleanup(other.Close)
	b.reach[0].URL, b.reach[0].Rate, b.reach[0].Concurrency, b.reach[0].Longest = other.URL, 1, 5, 30*time.Second
	b.plan(t, 1, 20)
	b.db.Exec(t, `UPDATE effects SET planned_at = clock_now() - interval '25 h', tried_since = CASE WHEN effect <= 2 THEN clock_now() - interval '25 h' END`)
	s := patient
	s.StopWithin = 10 * time.Millisecond
	r := runner.New(runner.Options{Pool: b.pool, ID: "a", Settings: s, Logger: slog.New(slog.DiscardHandler)})
	r.Replace(b.rules, b.reach)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	testkit.Eventually(t, patience, func() error {
		if calls.Load() == 0 {
			return errors.New("nothing is sent")
		}
		return nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	unsent := b.db.Rows(t, `SELECT DISTINCT concat_ws(' ', e.state, e.attempts, s.state, CASE WHEN effect <= 2 THEN tried_since < planned_at + interval '1 h' ELSE tried_since IS NULL END, left(e.reason, 9))
		FROM effects e JOIN effect_steps s USING (effect) WHERE e.state <> 'done'`)
	if diff := cmp.Diff([]string{"failed 0 failed t not sent:"}, unsent); diff != "" {
		t.Error(diff, strings.Join(b.db.Rows(t, `SELECT concat_ws(' ', effect, state, reason) FROM effects`), "\n"))
	}
}
