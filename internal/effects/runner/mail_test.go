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
	if err != nil {
		t.Fatal(err)
	}
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
	b.runWith(t, "a", b.pool, calm)
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
	if err != nil {
		t.Fatal(err)
	}
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
			if err := b.resolve(t, effects.Word{Step: "mail", Done: fault != sink.MailLoses}); err != nil {
				t.Fatal(err)
			}
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
	if err := b.resolve(t, effects.Word{Step: "mail", Done: true}); err != nil {
		t.Fatal(err)
	}
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

// A runner that ends in the middle of mails leaves doubts, and no mail is sent twice.
func TestMailOfADyingRunner(t *testing.T) {
	t.Parallel()
	b, mails := post(t, "")
	var mu sync.Mutex
	n, faults := 0, []sink.MailFault{sink.MailLater, sink.MailTakesDrops, sink.MailRefuses, sink.MailDrops, sink.MailLoses, sink.MailFull}
	mails.Fails(func() sink.MailFault {
		mu.Lock()
		defer mu.Unlock()
		if n++; n > 60 || n%2 == 0 {
			return sink.MailFine
		}
		return faults[n/2%len(faults)]
	})
	for id := range 30 {
		b.about(t, id, `{}`)
	}
	stop := b.run(t, "a", b.pool)
	testkit.Eventually(t, patience, func() error {
		if n := len(mails.Taken()); n < 3 {
			return fmt.Errorf("%d were taken", n)
		}
		return nil
	})
	stop()
	b.run(t, "b", b.pool)
	got := b.settled(t)
	if got["done"] == 0 || got["review"] == 0 || got["done"]+got["review"] != 30 {
		t.Fatal(got)
	}
	seen := map[string]int{}
	for _, m := range mails.Taken() {
		seen[m.Message]++
	}
	for message, n := range seen {
		if n != 1 {
			t.Errorf("%d times: %s", n, message)
		}
	}
	if len(seen) < got["done"] {
		t.Errorf("%d are done and %d were taken", got["done"], len(seen))
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

// Another side that knows what was sent is asked, by the Message-ID, and clears up the doubt: what it has is not sent again, and what it has not, is.
func TestMailIsAskedFor(t *testing.T) {
	t.Parallel()
	b, mails := post(t, `, check: {to: sink, path: "/messages?id={{ steps.mail.message_id }}", done: answer.status == 200, settles: 300ms}`)
	var lost atomic.Bool
	asked := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, m := range mails.Taken() {
			if strings.Contains(m.Message, "<"+r.URL.Query().Get("id")+">") {
				return
			}
		}
		lost.Store(true)
		http.NotFound(w, r)
	}))
	t.Cleanup(asked.Close)
	for i := range b.reach {
		if b.reach[i].Mail == nil {
			b.reach[i].URL = asked.URL
		}
	}
	mails.Fails(turns(sink.MailLoses, sink.MailTakesHangs))
	b.about(t, 1, `{}`)
	b.run(t, "a", b.pool)
	if got := b.settled(t); got["done"] != 1 || !lost.Load() {
		t.Fatal(got, b.show(t).Reason)
	}
	if taken := mails.Taken(); len(taken) != 1 || mails.Tries() != 2 {
		t.Fatalf("%d mails of %d tries", len(taken), mails.Tries())
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
