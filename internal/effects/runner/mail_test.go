package runner_test

import (
	"fmt"
	"io"
	"mime"
	"mime/quotedprintable"
	"net/http"
	"net/http/httptest"
	netmail "net/mail"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/mail"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// post has a mail server as the destination of one step that mails, whose further settings are more; new.name and new.to are in it.
func post(t *testing.T, more string) (*bundle, *sink.Mails) {
	t.Helper()
	b, mails := attended(t, twoSteps), sink.NewMails(t)
	b.mailTo(t, mails, more)
	return b, mails
}

func (b *bundle) mailTo(t *testing.T, mails *sink.Mails, more string) {
	t.Helper()
	b.mailFrom(t, mails, "Müller & Söhne <shop@shop.example>", more)
}

func (b *bundle) mailFrom(t *testing.T, mails *sink.Mails, sender, more string) {
	t.Helper()
	text := fmt.Sprintf(`
database: {url: postgres://x/y}
sources:
  shop: {provider: stripe, secrets: [{name: a, value: whsec_secret_of_the_tests}]}
destinations:
  sink: {url: %q, allow: [127.0.0.1], timeout: 300ms}
  post: {smtp: {host: 127.0.0.1, port: %d, tls: none, from: %q}, allow: [127.0.0.1], timeout: 2s}
effects:
  follow:
    source: shop
    type: invoice
    key: "follow:{{ object.id }}"
    steps:
      - {name: mail, to: post, person_resolves: true, retry: {first: 10ms, longest: 50ms}, mail: {to: "{{ new.name ?? \"\" }} <{{ new.to ?? \"jo@example.com\" }}>", cc: ["{{ new.cc ?? \"\" }}"], subject: "Rechnung {{ object.id }} für {{ new.name ?? \"\" }}", text: "Grüße.\n.\nNr. {{ object.id }}", html: "<p>{{ new.name ?? \"\" }}</p>"}%s}
`, b.sink.URL, mails.Port, sender, more)
	cfg, err := config.Parse([]byte(text), func(string) string { return "" })
	must(t, err)
	b.rules, b.reach = effects.NewRules(cfg.Rules()), cfg.Reaches()
}

// about plans an effect of an object with this state.
func (b *bundle) about(t *testing.T, id int, state string) {
	t.Helper()
	b.enter(t, b.rules.Intents(&effects.Transition{Source: "shop", Number: 1, Type: "invoice", ID: fmt.Sprint(id), New: []byte(state), Event: effects.Event{ID: int64(id)}}))
}

// turns are faults, one after the other, and then none.
func turns(all ...sink.MailFault) func() sink.MailFault {
	var mu sync.Mutex
	return func() sink.MailFault {
		mu.Lock()
		defer mu.Unlock()
		if len(all) == 0 {
			return sink.MailFine
		}
		next := all[0]
		all = all[1:]
		return next
	}
}

// A mail is sent once, after all that was not it: what was not taken is sent again, the same to the byte, and it says what the rule says.
func TestMailIsSentOnce(t *testing.T) {
	t.Parallel()
	b, mails := post(t, "")
	faults := turns(sink.MailRefuses, sink.MailLater, sink.MailDrops, sink.MailFull)
	mails.Fails(func() sink.MailFault { // each attempt is an hour after the one before
		b.db.Exec(t, fmt.Sprintf(`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$SELECT clock_timestamp() + interval '%d hours'$$`, mails.Tries()))
		return faults()
	})
	b.about(t, 1, `{"name": "Jörg \"Jo\" Ångström, Dr.", "cc": "boss@bücher.example"}`)
	calm := quick
	calm.LapseEvery = time.Hour // while the clock is turned nobody is to take the effect for one whose process ended
	b.launch(t, runner.Options{Settings: calm})
	if got := b.settled(t); got["done"] != 1 {
		t.Fatal(got, b.show(t).Reason)
	}
	taken := mails.Taken()
	if len(taken) != 1 || mails.Tries() != 5 {
		t.Fatalf("%d mails of %d tries", len(taken), mails.Tries())
	}
	if m := taken[0]; m.From != "shop@shop.example" || strings.Join(m.To, " ") != "jo@example.com boss@xn--bcher-kva.example" {
		t.Errorf("%+v", m)
	}
	v := b.show(t)
	if s := v.Steps[0]; s.Request != "MAIL jo@example.com, boss@xn--bcher-kva.example" || s.Status != 250 || s.Attempts != 5 || s.Doubt != effects.DoubtPerson {
		t.Errorf("%+v", s)
	}
	stored := b.db.Rows(t, `SELECT request->>'body' || '|' || (captured->>'message_id') || '|' || to_char(reserved_at AT TIME ZONE 'UTC', 'YYYY') FROM effect_steps`)[0]
	body, more, _ := strings.Cut(stored, "|")
	if heard := mails.Heard(); len(heard) != 2 || heard[0] != heard[1] || heard[1] != body {
		t.Errorf("sent %q, stored %q", heard, body)
	}
	m, err := netmail.ReadMessage(strings.NewReader(body))
	must(t, err)
	id, year, _ := strings.Cut(more, "|")
	if date, err := m.Header.Date(); err != nil || date.Format("2006") != year || m.Header.Get("Message-Id") != "<"+id+">" || !strings.HasSuffix(id, "@shop.example") {
		t.Errorf("%v, %v, %s", m.Header, err, more)
	}
	to, err := m.Header.AddressList("To")
	if err != nil || len(to) != 1 || to[0].Name != `Jörg "Jo" Ångström, Dr.` || to[0].Address != "jo@example.com" {
		t.Errorf("%+v, %v", to, err)
	}
	if subject, err := new(mime.WordDecoder).DecodeHeader(m.Header.Get("Subject")); err != nil || subject != `Rechnung 1 für Jörg "Jo" Ångström, Dr.` {
		t.Errorf("%q, %v", subject, err)
	}
	text, err := io.ReadAll(quotedprintable.NewReader(m.Body))
	if err != nil || !strings.Contains(string(text), "Grüße.\r\n.\r\nNr. 1") || !strings.Contains(string(text), "<p>Jörg &#34;Jo&#34; Ångström, Dr.</p>") {
		t.Errorf("%q, %v", text, err)
	}
}

// A mail of which nobody knows whether the server took it is never sent again; a person says what happened.
func TestMailInDoubtIsNotRepeated(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]sink.MailFault{"the connection ended": sink.MailTakesDrops, "no answer came": sink.MailTakesHangs, "it was not taken": sink.MailLoses} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, mails := post(t, "")
			mails.Fails(turns(fault))
			b.about(t, 1, `{}`)
			b.run(t, "a", b.pool)
			if got := b.settled(t); got["review"] != 1 {
				t.Fatal(got)
			}
			v := b.show(t)
			if s := v.Steps[0]; s.State != effects.Unknown || !strings.Contains(s.Error, "its Message-ID is <postern-") || !strings.Contains(v.Next, "resolve 1 --step mail --done, or --not-done") {
				t.Errorf("%+v, %s", s, v.Next)
			}
			refused(t, b.retry(t), "resolve 1 --step mail")
			must(t, b.resolve(t, effects.Word{Step: "mail", Done: fault != sink.MailLoses}))
			if got := b.settled(t); got["done"] != 1 || len(mails.Taken()) != 1 {
				t.Errorf("%v, %d mails", got, len(mails.Taken()))
			}
		})
	}
}

// Later steps know the Message-ID, also of a mail of which a person said that it was sent.
func TestWhatFollowsAMail(t *testing.T) {
	t.Parallel()
	b, mails := post(t, "}\n      - {name: note, to: sink, path: \"/notes\", json: {mail: \"{{ steps.mail.message_id }}\"}")
	mails.Fails(turns(sink.MailTakesDrops))
	b.about(t, 1, `{}`)
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["review"] != 1 {
		t.Fatal(got)
	}
	must(t, b.resolve(t, effects.Word{Step: "mail", Done: true}))
	b.about(t, 2, `{}`)
	if got := b.settled(t); got["done"] != 2 {
		t.Fatal(got)
	}
	for _, m := range mails.Taken() {
		noted := false
		for _, c := range b.sink.Calls() {
			noted = noted || strings.Contains(m.Message, fmt.Sprintf("Message-ID: <%s>\r\n", c.JSON(t)["mail"])) || strings.Contains(m.Message, fmt.Sprintf("Message-ID:\r\n <%s>\r\n", c.JSON(t)["mail"]))
		}
		if !noted {
			t.Errorf("nobody noted %s", m.Message)
		}
	}
}

// What the server refuses for good a person sees, and of several recipients none has it.
func TestMailThatIsRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fault        sink.MailFault
		state, error string
		status       int
	}{
		"one of the recipients":     {sink.MailNobody, `{"cc": "nobody@example.com"}`, "RCPT TO nobody@example.com: 550 \"5.1.1 <nobody@example.com> is not here\"", 550},
		"the message":               {sink.MailSpam, `{}`, "after the message: 554 \"5.7.1 spam\"", 554},
		"a name with a line end":    {sink.MailFine, `{"name": "Jo\r\nBcc: all@example.com"}`, "control character", 0},
		"an address with one":       {sink.MailFine, `{"to": "jo@example.com>\r\nBcc: <all@example.com"}`, "is no address that mail can be sent to", 0},
		"two addresses":             {sink.MailFine, `{"to": "jo@example.com>, <all@example.com"}`, "is no address that mail can be sent to", 0},
		"two where one may be":      {sink.MailFine, `{"cc": "jo@example.com, all@example.com"}`, "is no address", 0},
		"an address in quotes":      {sink.MailFine, `{"to": "\"jo@example.com>, <all\"@example.com"}`, "is no address that mail can be sent to", 0},
		"nobody":                    {sink.MailFine, `{"to": ""}`, "is no address that mail can be sent to", 0},
		"a parameter of the server": {sink.MailFine, `{"to": "jo@example.com> NOTIFY=NEVER <x"}`, "is no address that mail can be sent to", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, mails := post(t, "")
			mails.Fails(turns(tc.fault))
			b.about(t, 1, tc.state)
			b.run(t, "a", b.pool)
			if got := b.settled(t); got["review"] != 1 {
				t.Fatal(got)
			}
			v := b.show(t)
			if !strings.Contains(v.Reason, tc.error) || len(mails.Taken()) > 0 {
				t.Errorf("%s; %d taken", v.Reason, len(mails.Taken()))
			}
			if tc.status > 0 && (v.Steps[0].State != effects.StepFailed || v.Steps[0].Status != tc.status) {
				t.Errorf("%+v", v.Steps[0])
			}
		})
	}
}

// A mail server is reached where the destination allows it, and without TLS only there.
func TestMailIsGuarded(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		security mail.Security
		allow    string
		error    string
	}{
		"a private address":                {mail.Required, "10.0.0.0/8", "is an address within a private network"},
		"another than is allowed in clear": {mail.None, "10.0.0.0/8", "is not among what the destination allows: without TLS it may not be called"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, mails := post(t, "")
			for i := range b.reach {
				if to := b.reach[i].Mail; to != nil {
					to.Security, b.reach[i].Allow = tc.security, []netip.Prefix{netip.MustParsePrefix(tc.allow)}
				}
			}
			b.about(t, 1, `{}`)
			b.run(t, "a", b.pool)
			if got := b.settled(t); got["review"] != 1 || !strings.Contains(b.show(t).Reason, tc.error) || mails.Tries() != 0 {
				t.Errorf("%v, %s, %d tries", got, b.show(t).Reason, mails.Tries())
			}
		})
	}
}

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
