package runner_test

import (
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/quotedprintable"
	"net/http"
	netmail "net/mail"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/jobs/runner"
	"github.com/postern-gateway/postern/internal/mail"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// post configures a mail server as the destination of one mail step with more settings; new.name
// and new.to are in its texts.
func post(t *testing.T, more string) (*fixture, *sink.MailServer) {
	t.Helper()
	b, mails := setupWithSource(t, twoSteps), sink.NewMailServer(t)
	b.mailFrom(t, mails, "Müller & Söhne <shop@shop.example>", more)
	return b, mails
}

// mailFrom configures the mail step with a sender.
func (b *fixture) mailFrom(t *testing.T, mails *sink.MailServer, sender, more string) {
	t.Helper()
	b.configure(t, `
destinations:
  sink: {url: %q, allow: [127.0.0.1], timeout: 1s}
  post: {smtp: {host: 127.0.0.1, port: %d, tls: none, from: %q}, allow: [127.0.0.1], timeout: 2s}
effects:
  follow:
    source: shop
    type: invoice
    key: "follow:{{ object.id }}"
    steps:
      - {name: mail, to: post, operator_resolves: true, retry: {first_wait: 10ms, max_wait: 50ms}, `+
		`mail: {to: "{{ new.name ?? \"\" }} <{{ new.to ?? \"jo@example.com\" }}>", cc: ["{{ new.cc ?? \"\" }}"], `+
		`subject: "Rechnung {{ object.id }} für {{ new.name ?? \"\" }}", `+
		`text: "Grüße.\n.\nNr. {{ object.id }}", html: "<p>{{ new.name ?? \"\" }}</p>"}%s}
`, b.sink.URL, mails.Port, sender, more)
}

// about plans an effect of an object with a state.
func (b *fixture) about(t *testing.T, id int, state string) {
	t.Helper()
	b.insert(t, b.rules.Evaluate(&effects.Transition{Source: "shop", Number: 1, Type: "invoice", ID: fmt.Sprint(id),
		New: []byte(state), Event: effects.Event{ID: int64(id)}}))
}

// faultsInOrder returns the faults in order, and then none.
func faultsInOrder(all ...sink.MailFault) func() sink.MailFault {
	var mu sync.Mutex
	return func() sink.MailFault {
		mu.Lock()
		defer mu.Unlock()
		if len(all) == 0 {
			return sink.MailNoFault
		}
		next := all[0]
		all = all[1:]
		return next
	}
}

// A mail is sent once, after attempts that failed. Each attempt sends the same bytes, and the mail
// matches the rule.
func TestSendMail_retries_sendOneMail(t *testing.T) {
	t.Parallel()
	b, mails := post(t, "")
	faults := faultsInOrder(sink.MailDropsBeforeBanner, sink.MailTemporaryFailure, sink.MailDropsBeforeMessage,
		sink.MailboxFull)
	mails.SetFaults(func() sink.MailFault { // each attempt is an hour after the previous one
		b.db.ReplaceClock(t, fmt.Sprintf("clock_timestamp() + interval '%d hours'", mails.Connections()))
		return faults()
	})
	b.about(t, 1, `{"name": "Jörg \"Jo\" Ångström, Dr.", "cc": "boss@bücher.example"}`)
	slowReclaim := quick
	slowReclaim.ReclaimEvery = time.Hour // while the clock is moved, no process may reclaim the effect
	b.launch(t, runner.Options{Settings: slowReclaim})
	b.wantIdle(t, "done", 1)
	accepted := mails.Accepted()
	if len(accepted) != 1 || mails.Connections() != 5 {
		t.Fatalf("%d mails of %d tries", len(accepted), mails.Connections())
	}
	if m := accepted[0]; m.From != "shop@shop.example" ||
		strings.Join(m.To, " ") != "jo@example.com boss@xn--bcher-kva.example" {
		t.Errorf("%+v", m)
	}
	v := b.show(t)
	if s := v.Steps[0]; s.Request != "MAIL jo@example.com, boss@xn--bcher-kva.example" || s.Status != 250 ||
		s.Attempts != 5 || s.Recovery != effects.RecoverByOperator {
		t.Errorf("%+v", s)
	}
	stored := b.db.QueryStrings(t, `SELECT request->>'body' || '|' || (captured->>'message_id') || '|' ||
		to_char(reserved_at AT TIME ZONE 'UTC', 'YYYY') FROM effect_steps`)[0]
	body, more, _ := strings.Cut(stored, "|")
	if received := mails.Received(); len(received) != 2 || received[0] != received[1] || received[1] != body {
		t.Errorf("sent %q, stored %q", received, body)
	}
	m, err := netmail.ReadMessage(strings.NewReader(body))
	must(t, err)
	id, year, _ := strings.Cut(more, "|")
	if date, err := m.Header.Date(); err != nil || date.Format("2006") != year || m.Header.Get("Message-Id") != "<"+id+
		">" || !strings.HasSuffix(id, "@shop.example") {
		t.Errorf("%v, %v, %s", m.Header, err, more)
	}
	to, err := m.Header.AddressList("To")
	if err != nil || len(to) != 1 || to[0].Name != `Jörg "Jo" Ångström, Dr.` || to[0].Address != "jo@example.com" {
		t.Errorf("%+v, %v", to, err)
	}
	if subject, err := new(mime.WordDecoder).DecodeHeader(m.Header.Get("Subject")); err != nil ||
		subject != `Rechnung 1 für Jörg "Jo" Ångström, Dr.` {
		t.Errorf("%q, %v", subject, err)
	}
	text, err := io.ReadAll(quotedprintable.NewReader(m.Body))
	if err != nil || !strings.Contains(string(text), "Grüße.\r\n.\r\nNr. 1") ||
		!strings.Contains(string(text), "<p>Jörg &#34;Jo&#34; Ångström, Dr.</p>") {
		t.Errorf("%q, %v", text, err)
	}
}

// If it is unknown whether the server accepted a mail, the mail is not sent again. An operator
// decides.
func TestSendMail_unknownOutcome_isNotRepeated(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]sink.MailFault{"the connection ended": sink.MailAcceptsThenDrops,
		"no response": sink.MailAcceptsThenHangs, "not accepted": sink.MailDropsAfterMessage} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, mails := post(t, "")
			mails.SetFaults(faultsInOrder(fault))
			b.about(t, 1, `{}`)
			b.run(t, "a", b.pool)
			b.wantIdle(t, "needs_review", 1)
			v := b.show(t)
			if s := v.Steps[0]; s.State != effects.Unknown ||
				!strings.Contains(s.Error, "its Message-ID is <postern-") ||
				!strings.Contains(v.AllowedActions, "resolve 1 --step mail --done, or --not-done") {
				t.Errorf("%+v, %s", s, v.AllowedActions)
			}
			wantError(t, b.retry(t), "resolve 1 --step mail")
			must(t, b.resolve(t, effects.ResolveParams{Step: "mail", Done: fault != sink.MailDropsAfterMessage}))
			b.wantIdle(t, "done", 1)
			waitForMails(t, mails, 1)
		})
	}
}

// Later steps see the Message-ID, also of a mail that an operator reported as sent.
func TestSendMail_laterSteps_seeTheMessageID(t *testing.T) {
	t.Parallel()
	b, mails := post(t, "}\n      - {name: note, to: sink, path: \"/notes\", json: {mail: \"{{ steps.mail.message_id "+
		"}}\"}")
	mails.SetFaults(faultsInOrder(sink.MailAcceptsThenDrops))
	b.about(t, 1, `{}`)
	b.run(t, "a", b.pool)
	b.wantIdle(t, "needs_review", 1)
	must(t, b.resolve(t, effects.ResolveParams{Step: "mail", Done: true}))
	b.about(t, 2, `{}`)
	b.wantIdle(t, "done", 2)
	for _, m := range mails.Accepted() {
		recorded := false
		for _, c := range b.sink.Calls() {
			id := c.JSON(t)["mail"]
			recorded = recorded || strings.Contains(m.Message, fmt.Sprintf("Message-ID: <%s>\r\n", id)) ||
				strings.Contains(m.Message, fmt.Sprintf("Message-ID:\r\n <%s>\r\n", id))
		}
		if !recorded {
			t.Errorf("no step captured %s", m.Message)
		}
	}
}

// A permanent rejection needs review. If one of several recipients is rejected, none gets the mail.
func TestSendMail_permanentRejection_needsReview(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fault        sink.MailFault
		state, error string
		status       int
	}{
		"rejected recipient": {sink.MailUnknownRecipient, `{"cc": "nobody@example.com"}`,
			"RCPT TO nobody@example.com: 550 \"5.1.1 <nobody@example.com> is not here\"", 550},
		"rejected message": {sink.MailRejectedAsSpam, `{}`, "after the message: 554 \"5.7.1 spam\"", 554},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, mails := post(t, "")
			mails.SetFaults(faultsInOrder(tc.fault))
			b.about(t, 1, tc.state)
			b.run(t, "a", b.pool)
			b.wantIdle(t, "needs_review", 1)
			if v := b.show(t); !strings.Contains(v.Reason, tc.error) || len(mails.Accepted()) > 0 ||
				v.Steps[0].State != effects.StepFailed || v.Steps[0].Status != tc.status {
				t.Errorf("%+v; %d taken", v, len(mails.Accepted()))
			}
		})
	}
}

// A state cannot add recipients or headers to a mail, and the mail server is not called for one
// that tries.
func TestSendMail_stateWithUnusableAddress_needsReview(t *testing.T) {
	t.Parallel()
	const noAddress = "is not an address that mail can be sent to"
	b, mails := post(t, "")
	states := map[string]string{
		`{"name": "Jo\r\nBcc: all@example.com"}`:             "control character",
		`{"to": "jo@example.com>\r\nBcc: <all@example.com"}`: noAddress,
		`{"to": "jo@example.com>, <all@example.com"}`:        noAddress,
		`{"cc": "jo@example.com, all@example.com"}`:          "is no address",
		`{"to": "\"jo@example.com>, <all\"@example.com"}`:    noAddress,
		`{"to": ""}`: noAddress,
		`{"to": "jo@example.com> NOTIFY=NEVER <x"}`: noAddress,
	}
	names := slices.Sorted(maps.Keys(states))
	for n, state := range names {
		b.about(t, n+1, state)
	}
	b.run(t, "a", b.pool)
	testkit.Equal(t, "effects by state", map[string]int{"needs_review": len(states)}, b.waitIdle(t))
	for n, reason := range b.db.QueryStrings(t, `SELECT reason FROM effects ORDER BY effect`) {
		if !strings.Contains(reason, states[names[n]]) {
			t.Errorf("%s: %s", names[n], reason)
		}
	}
	if n := mails.Connections(); n != 0 {
		t.Errorf("%d connections to the mail server", n)
	}
}

// A mail server is called only at allowed addresses, and without TLS only at listed ones.
func TestMailDialer_addresses_areRestricted(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		security mail.Security
		allow    string
		error    string
	}{
		"private address": {mail.Required, "10.0.0.0/8", "may not be called unless the setting allow of"},
		"address outside the allowed ones without TLS": {mail.None, "10.0.0.0/8",
			"is not in the list that the destination allows: without TLS it may not be called"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, mails := post(t, "")
			for i := range b.destinations {
				if to := b.destinations[i].Mail; to != nil {
					to.Security, b.destinations[i].Allow = tc.security, []netip.Prefix{netip.MustParsePrefix(tc.allow)}
				}
			}
			b.about(t, 1, `{}`)
			b.run(t, "a", b.pool)
			if got := b.waitIdle(t); got["needs_review"] != 1 || !strings.Contains(b.show(t).Reason, tc.error) ||
				mails.Connections() != 0 {
				t.Errorf("%v, %s, %d tries", got, b.show(t).Reason, mails.Connections())
			}
		})
	}
}

const (
	movedFrom   = "Shop <shop@new.example>"
	askedByMail = `, check: {to: sink, path: "/messages?id={{ steps.mail.message_id }}", ` +
		`done: answer.status == 200, delay: 300ms}}
      - {name: note, to: sink, path: "/notes", json: {mail: "{{ steps.mail.message_id }}"}`
)

// serveMessageIDs is an API that knows the accepted mails by their Message-ID, once it is up.
func (b *fixture) serveMessageIDs(t *testing.T, mails *sink.MailServer) (url string, up *atomic.Bool) {
	t.Helper()
	up = new(atomic.Bool)
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/messages" {
			return
		}
		if !up.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		for _, m := range mails.Accepted() {
			if strings.Contains(m.Message, "<"+r.URL.Query().Get("id")+">") {
				return
			}
		}
		http.NotFound(w, r)
	}), up
}

// checkByAPI makes an API the destination of the check.
func (b *fixture) checkByAPI(url string) {
	for i := range b.destinations {
		if b.destinations[i].Mail == nil {
			b.destinations[i].URL = url
		}
	}
}

// A mail keeps the Message-ID of its first attempt, even if the destination has another sender by
// now. The check and later steps use that Message-ID.
func TestMessageID_senderChanged_staysTheSame(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fault sink.MailFault
		state string
	}{"unknown outcome": {sink.MailAcceptsThenDrops, "unknown"}, "failed": {sink.MailboxFull, "failed"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, mails := post(t, askedByMail)
			url, up := b.serveMessageIDs(t, mails)
			b.checkByAPI(url)
			var fixed atomic.Bool
			mails.SetFaults(func() sink.MailFault {
				if fixed.Load() {
					return sink.MailNoFault
				}
				return tc.fault
			})
			b.about(t, 1, `{}`)
			stop := b.run(t, "a", b.pool)
			b.waitForRow(t, `SELECT state FROM effect_steps WHERE ended_at IS NOT NULL`, tc.state)
			stop()
			b.mailFrom(t, mails, movedFrom, askedByMail)
			b.checkByAPI(url)
			fixed.Store(true)
			up.Store(true)
			b.db.Exec(t, `UPDATE effects SET state = 'failed', due = clock_now(), attempts = 1, lease_until = NULL`)
			b.run(t, "b", b.pool)
			b.wantIdle(t, "done", 1)
			waitForMails(t, mails, 1)
			id := b.db.QueryStrings(t, `SELECT captured->>'message_id' FROM effect_steps WHERE step = 'mail'`)[0]
			recorded := b.db.QueryStrings(t, `SELECT request->>'body' FROM effect_steps WHERE step = 'note'`)[0]
			if !strings.HasSuffix(id, "@shop.example") || !strings.Contains(mails.Accepted()[0].Message, "<"+id+">") ||
				!strings.Contains(recorded, id) {
				t.Errorf("%s is captured, checked for %s; sent %s", id, recorded, mails.Accepted()[0].Message)
			}
		})
	}
}

// insertUnknownMails inserts mails, of which the first ones have an unknown outcome, as after an
// outage of the mail server. Another destination checks them.
func insertUnknownMails(t *testing.T, unknown, all int, check http.HandlerFunc) (*fixture, *sink.MailServer) {
	t.Helper()
	b, mails := post(t, `, timeout: 10m, check: {to: sink, path: "/messages?id={{ steps.mail.message_id }}", `+
		`done: answer.status == 200}`)
	b.checkByAPI(serve(t, check))
	for i := range b.destinations {
		b.destinations[i].Concurrency = 1
	}
	for id := 1; id <= all; id++ {
		b.about(t, id, `{}`)
	}
	b.db.Exec(t, `INSERT INTO effect_steps (effect, step, position, state, destination, fingerprint, resolved_by,
		attempts, reserved_at, ended_at, first_attempt_at)
		SELECT effect, 'mail', 0, 'unknown', 'post', '', 'check', 1, clock_now() - interval '1 h',
			clock_now() - interval '1 h', clock_now() - interval '1 h' FROM effects WHERE effect <= $1`, unknown)
	b.db.Exec(t, `UPDATE effects SET state = 'failed', attempts = 1, due = due - interval '1 s' WHERE effect <= $1`,
		unknown)
	return b, mails
}

// waitForMails waits until a number of mails was sent.
func waitForMails(t *testing.T, mails *sink.MailServer, want int) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if n := len(mails.Accepted()); n != want {
			return fmt.Errorf("%d of %d were sent", n, want)
		}
		return nil
	})
}

// A check destination that does not respond does not delay effects of a mail server that responds.
func TestNextDestination_checkDestinationDown_mailContinues(t *testing.T) {
	t.Parallel()
	b, mails := insertUnknownMails(t, 3, 5, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	b.run(t, "a", b.pool)
	waitForMails(t, mails, 2)
	b.waitForRow(t, `SELECT DISTINCT destination FROM effects WHERE effect <= 3`, "sink")
}

// A check destination that requests a pause is paused for all checks. A mail that it reports as not
// sent is sent.
func TestNextDestination_checkDestinationRequestsPause_isPaused(t *testing.T) {
	t.Parallel()
	var checks atomic.Int64
	b, mails := insertUnknownMails(t, 3, 5, func(w http.ResponseWriter, _ *http.Request) {
		if checks.Add(1) > 1 {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		w.WriteHeader(http.StatusNotFound)
	})
	b.run(t, "a", b.pool)
	waitForMails(t, mails, 3)
	b.waitForRow(t, `SELECT count(*) FROM effects WHERE destination = 'sink' AND reason LIKE 'status 429%'
		AND due > clock_now() + interval '30 min'`, "1")
	b.about(t, 6, `{}`)
	waitForMails(t, mails, 4)
	if n := checks.Load(); n != 2 {
		t.Errorf("%d checks", n)
	}
}

// An effect with an unknown outcome waits in the queue of its check destination.
func TestNextDestination_unknownStep_waitsForCheckDestination(t *testing.T) {
	t.Parallel()
	b, mails := insertUnknownMails(t, 0, 1,
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	mails.SetFaults(func() sink.MailFault { return sink.MailAcceptsThenDrops })
	b.run(t, "a", b.pool)
	b.waitForRow(t, `SELECT concat_ws(' ', e.destination, s.state, s.destination) FROM effects e
		JOIN effect_steps s USING (effect) WHERE e.state = 'failed'`, "sink unknown post")
	if v := b.show(t); !strings.Contains(v.Reason, "its Message-ID is") {
		t.Error(v.Reason)
	}
}
