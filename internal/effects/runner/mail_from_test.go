package runner_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit/sink"
)

const (
	movedFrom   = "Shop <shop@new.example>"
	askedByMail = `, check: {to: sink, path: "/messages?id={{ steps.mail.message_id }}", done: answer.status == 200, settles: 300ms}}
      - {name: note, to: sink, path: "/notes", json: {mail: "{{ steps.mail.message_id }}"}`
)

// knows is an API that knows the mails that were taken by their Message-ID, once it is up.
func (b *bundle) knows(t *testing.T, mails *sink.Mails) (url string, up *atomic.Bool) {
	t.Helper()
	up = new(atomic.Bool)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/messages" {
			return
		}
		if !up.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		for _, m := range mails.Taken() {
			if strings.Contains(m.Message, "<"+r.URL.Query().Get("id")+">") {
				return
			}
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL, up
}

// asks makes an API the destination that is asked.
func (b *bundle) asks(url string) {
	for i := range b.reach {
		if b.reach[i].Mail == nil {
			b.reach[i].URL = url
		}
	}
}

// A mail that was begun has the Message-ID with which it was begun, also where the destination has another from by now: by that one it is asked for, and by that one later steps know it.
func TestAMailKeepsItsMessageID(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fault sink.MailFault
		state string
	}{"in doubt": {sink.MailTakesDrops, "unknown"}, "not taken": {sink.MailFull, "failed"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, mails := post(t, askedByMail)
			url, up := b.knows(t, mails)
			b.asks(url)
			var mended atomic.Bool
			mails.Fails(func() sink.MailFault {
				if mended.Load() {
					return sink.MailFine
				}
				return tc.fault
			})
			b.about(t, 1, `{}`)
			stop := b.run(t, "a", b.pool)
			b.becomes(t, `SELECT state FROM effect_steps WHERE ended_at IS NOT NULL`, tc.state)
			stop()
			b.mailFrom(t, mails, movedFrom, askedByMail)
			b.asks(url)
			mended.Store(true)
			up.Store(true)
			b.db.Exec(t, `UPDATE effects SET state = 'failed', due = clock_now(), attempts = 1, taken_until = NULL`)
			b.run(t, "b", b.pool)
			if got := b.settled(t); got["done"] != 1 || len(mails.Taken()) != 1 {
				t.Fatal(got, b.show(t).Reason, mails.Taken())
			}
			id := b.db.Rows(t, `SELECT captured->>'message_id' FROM effect_steps WHERE step = 'mail'`)[0]
			noted := b.db.Rows(t, `SELECT request->>'body' FROM effect_steps WHERE step = 'note'`)[0]
			if !strings.HasSuffix(id, "@shop.example") || !strings.Contains(mails.Taken()[0].Message, "<"+id+">") || !strings.Contains(noted, id) {
				t.Errorf("%s is captured, %s told; sent %s", id, noted, mails.Taken()[0].Message)
			}
		})
	}
}
