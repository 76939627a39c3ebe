package runner_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// inDoubt are mails of which so many, the first, may have been sent, as after a spell of a server that ended connections, and which another destination is asked for.
func inDoubt(t *testing.T, doubted, all int, answer http.HandlerFunc) (*bundle, *sink.Mails) {
	t.Helper()
	b, mails := post(t, `, timeout: 10m, check: {to: sink, path: "/messages?id={{ steps.mail.message_id }}", done: answer.status == 200}`)
	api := httptest.NewServer(answer)
	t.Cleanup(api.Close)
	b.asks(api.URL)
	for i := range b.reach {
		b.reach[i].Concurrency = 1
	}
	for id := 1; id <= all; id++ {
		b.about(t, id, `{}`)
	}
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, place, state, destination, fingerprint, doubt, attempts, reserved_at, ended_at, known_since)
		SELECT effect, 'mail', 0, 'unknown', 'post', '', 'check', 1, clock_now() - interval '1 h', clock_now() - interval '1 h', clock_now() - interval '1 h' FROM effects WHERE effect <= $1`, doubted)
	b.db.Exec(t, `UPDATE effects SET state = 'failed', attempts = 1, due = due - interval '1 s' WHERE effect <= $1`, doubted)
	return b, mails
}

// sends waits until so many mails were sent.
func sends(t *testing.T, mails *sink.Mails, want int) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if n := len(mails.Taken()); n != want {
			return fmt.Errorf("%d of %d were sent", n, want)
		}
		return nil
	})
}

// A destination that is asked and does not answer holds up nobody whose mail server does.
func TestWhoIsAskedHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	b, mails := inDoubt(t, 3, 5, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	b.run(t, "a", b.pool)
	sends(t, mails, 2)
	if got := b.db.Rows(t, `SELECT DISTINCT destination FROM effects WHERE effect <= 3`); len(got) != 1 || got[0] != "sink" {
		t.Error(got)
	}
}

// A destination that is asked and wants to be left alone is, by all that would ask; what it says was not done is sent.
func TestWhoIsAskedIsLeftAlone(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	b, mails := inDoubt(t, 3, 5, func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) > 1 {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		w.WriteHeader(http.StatusNotFound)
	})
	b.run(t, "a", b.pool)
	sends(t, mails, 3)
	b.becomes(t, `SELECT count(*) FROM effects WHERE destination = 'sink' AND reason LIKE 'status 429%' AND due > clock_now() + interval '30 min'`, "1")
	b.about(t, 6, `{}`)
	sends(t, mails, 4)
	if n := asked.Load(); n != 2 {
		t.Errorf("asked %d times", n)
	}
}

// What is in doubt waits for the one that is asked, from the moment that it is.
func TestADoubtGoesToWhoIsAsked(t *testing.T) {
	t.Parallel()
	b, mails := inDoubt(t, 0, 1, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	mails.Fails(func() sink.MailFault { return sink.MailTakesDrops })
	b.run(t, "a", b.pool)
	b.becomes(t, `SELECT concat_ws(' ', e.destination, s.state, s.destination) FROM effects e JOIN effect_steps s USING (effect) WHERE e.state = 'failed'`, "sink unknown post")
	if v := b.show(t); !strings.Contains(v.Reason, "its Message-ID is") {
		t.Error(v.Reason)
	}
}
