package notify_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/notify"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const patience = 30 * time.Second

// quick are settings with short timings.
var quick = notify.Settings{Every: 20 * time.Millisecond, Timeout: 10 * time.Second, RunDelay: time.Millisecond,
	FirstWait: 10 * time.Millisecond, MaxWait: 50 * time.Millisecond}

// postedAlert is a received alert.
type postedAlert struct {
	id, auth, signature string
	Type                string
	Data                struct {
		Notify, Condition, State, Summary, Command, Since string
		Count                                             int
		AtLeast                                           bool `json:"at_least"`
		IDs                                               []int64
	}
}

func (p postedAlert) String() string {
	return fmt.Sprint(p.Data.Condition, " ", p.Data.State, " ", p.Data.Count)
}

// fixture is a receiver of notifications, with the alerts that it received.
type fixture struct {
	db    *testkit.DB
	cfg   *config.Config
	mails *sink.MailServer

	mu       sync.Mutex
	received []postedAlert
	// status returns the status of the next response; nil means 200.
	status func() int
	// hours is how far the database's clock has been moved.
	hours int
}

// setup configures the recipient oncall over HTTP, with additional settings, and the destination
// post, a mail server.
func setup(t *testing.T, settings string) *fixture {
	t.Helper()
	b := &fixture{db: testkit.Database(t), mails: sink.NewMailServer(t)}
	server := httptest.NewServer(b)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	text := fmt.Sprintf(`
database: {url: postgres://x/y}
destinations:
  app: {url: %q, allow: [127.0.0.1], key: {value: key-of-app}, `+
		`signing_secret: {value: "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"}}
  post: {smtp: {host: 127.0.0.1, port: %d, tls: none, from: Postern <postern@shop.example>}, allow: [127.0.0.1]}
  dead: {url: "http://127.0.0.1:1", allow: [127.0.0.1]}
notify: %s
`, server.URL, b.mails.Port, settings)
	var err error
	if b.cfg, err = config.Parse([]byte(text), func(string) string { return "" }); err != nil {
		t.Fatal(err)
	}
	return b
}

// ServeHTTP accepts an alert.
func (b *fixture) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	p := postedAlert{id: r.Header.Get("Webhook-Id"), auth: r.Header.Get("Authorization"),
		signature: r.Header.Get("Webhook-Signature")}
	if err == nil {
		err = json.Unmarshal(body, &p)
	}
	if err != nil || r.URL.Path != "/alerts" {
		http.Error(w, fmt.Sprint(r.URL.Path, err), http.StatusTeapot)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.received = append(b.received, p)
	if b.status != nil {
		w.WriteHeader(b.status())
	}
}

// all returns the received alerts except the first ones.
func (b *fixture) all(first int) []postedAlert {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]postedAlert{}, b.received[min(first, len(b.received)):]...)
}

// watch runs a watcher until stop is called, at the latest until the test ends.
func (b *fixture) watch(t *testing.T) (stop func()) {
	t.Helper()
	w, err := notify.New(b.db.Role(t, "processor"), quick, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	w.Replace(notify.Recipients(b.cfg))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// waitNotified waits until a number of notifications is recorded as sent.
func (b *fixture) waitNotified(t *testing.T, notified int) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		return differ([]string{fmt.Sprint(notified)}, b.db.QueryStrings(t, `SELECT sum(sequence)::text
			FROM notifications`))
	})
}

// advanceClock moves the database's clock by an hour, after a number of notifications is recorded
// as sent.
func (b *fixture) advanceClock(t *testing.T, notified int) {
	t.Helper()
	b.waitNotified(t, notified)
	b.hours++
	b.clock(t)
}

// clock sets the database's clock to the number of hours.
func (b *fixture) clock(t *testing.T) {
	t.Helper()
	b.db.Exec(t, fmt.Sprintf(`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
		$$SELECT clock_timestamp() + interval '%d hours'$$`, b.hours))
}

// wantReceived waits until exactly these alerts were received, in alphabetical order, except the
// first ones.
func (b *fixture) wantReceived(t *testing.T, first int, want ...string) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		var got []string
		for _, p := range b.all(first) {
			got = append(got, p.String())
		}
		return differ(want, got)
	})
}

func differ(want, got []string) error {
	count := map[string]int{}
	for _, w := range want {
		count[w]++
	}
	for _, g := range got {
		count[g]--
	}
	for _, n := range count {
		if n != 0 {
			return fmt.Errorf("received %q, want %q", got, want)
		}
	}
	return nil
}

// insertEffect inserts an effect that was last updated two hours ago.
func (b *fixture) insertEffect(t *testing.T, id int, state string, steps ...string) {
	t.Helper()
	b.db.Exec(t, fmt.Sprintf(`INSERT INTO effects (effect, key, rule_version, rule, source, account, object_type,
		object_id, event_id, run, state, destination, planned_at, updated_at)
OVERRIDING SYSTEM VALUE VALUES (%d, 'k%d', 1, 'r', 1, '', 't', 'o', 1, 0, '%s', 'd', clock_now() - interval '2 hours',
	clock_now() - interval '2 hours')`, id, id, state))
	for _, s := range steps {
		b.db.Exec(t, fmt.Sprintf(`INSERT INTO effect_steps (effect, step, position, state, destination, fingerprint,
			attempts, reserved_at) VALUES (%d, 's', 0, '%s', 'd', '', 1, clock_now() - interval '2 hours')`, id, s))
	}
}

// A condition is reported when it starts, again after a while, and once when it ends, whichever
// process reports it.
func TestWatcher_condition_isReportedAtStartRepeatAndEnd(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts}}`)
	b.insertEffect(t, 1, "needs_review")
	b.insertEffect(t, 2, "needs_review", "unknown")
	b.insertEffect(t, 3, "awaiting_approval")
	b.insertEffect(t, 4, "done")
	stop := b.watch(t)
	b.watch(t)
	b.wantReceived(t, 0, "effects_needing_review began 2", "effects_with_unknown_outcome began 1",
		"effects_awaiting_approval began 1")
	for _, p := range b.all(0) {
		if p.Data.Condition != "effects_needing_review" {
			continue
		}
		if diff := cmp.Diff([]int64{1, 2}, p.Data.IDs); diff != "" || p.Type != "postern.alert" ||
			p.Data.Notify != "oncall" || p.Data.Summary != "2 effects need review" ||
			p.Data.Command != "postern effects list --state needs_review, or --state planned if a rule or destination "+
				"is not configured, and postern effects show 1" || p.auth != "Bearer key-of-app" ||
			!strings.HasPrefix(p.signature, "v1,") {
			t.Errorf("%+v %s", p, diff)
		}
	}
	b.waitNotified(t, 3) // the lease of one that was sent, and not recorded, would last half a minute
	stop()
	b.insertEffect(t, 5, "awaiting_approval")
	b.advanceClock(t, 3)
	b.wantReceived(t, 3, "effects_needing_review lasts 2", "effects_with_unknown_outcome lasts 1",
		"effects_awaiting_approval lasts 2")
	b.db.Exec(t, `UPDATE effects SET state = 'rejected' WHERE effect IN (1, 2)`)
	b.wantReceived(t, 6, "effects_needing_review over 0", "effects_with_unknown_outcome over 0")
	b.advanceClock(t, 8)
	b.wantReceived(t, 8, "effects_awaiting_approval lasts 2")
	b.insertEffect(t, 6, "needs_review")
	b.wantReceived(t, 9, "effects_needing_review began 1")
	ids := map[string]bool{}
	for _, p := range b.all(0) {
		if ids[p.id] || p.id == "" {
			t.Errorf("%s has the id of another", p)
		}
		ids[p.id] = true
	}
}

// A failed run is reported once. Runs that failed before the recipient was configured are not.
func TestWatcher_failedRun_isReportedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, conditions: [failed_runs, dead_outcomes]}}`)
	b.insertEndedRun(t, 1, "failed")
	b.watch(t)
	b.waitRows(t, 2)
	b.insertEndedRun(t, 2, "failed")
	b.insertEndedRun(t, 3, "done")
	b.wantReceived(t, 0, "failed_runs happened 1")
	b.insertEndedRun(t, 4, "failed")
	b.insertEndedRun(t, 5, "failed")
	b.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason,
		attempts, at, rule_version) VALUES (7, 0, 1, 0, '', '', '', 'dead', '', 1, clock_now(), 1)`)
	b.wantReceived(t, 1, "dead_outcomes began 1")
	b.advanceClock(t, 2)
	b.wantReceived(t, 2, "failed_runs happened 2", "dead_outcomes lasts 1")
	b.advanceClock(t, 4)
	b.wantReceived(t, 4, "dead_outcomes lasts 1")
	if p := b.all(0)[0]; len(p.Data.IDs) != 1 || p.Data.IDs[0] != 2 || p.Data.Since != "" {
		t.Errorf("%+v", p)
	}
}

// A failed notification is sent again with the same id. A recipient that does not respond delays no
// other.
func TestWatcher_failedNotification_isRetriedWithSameID(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, conditions: [effects_needing_review]}, `+
		`nobody: {to: dead}, mute: {to: app}}`)
	n := 0
	b.status = func() int {
		if n++; n < 4 {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	}
	b.insertEffect(t, 1, "needs_review")
	b.watch(t)
	b.wantReceived(t, 0, "effects_needing_review began 1", "effects_needing_review began 1", "effects_needing_review "+
		"began 1", "effects_needing_review began 1")
	for _, p := range b.all(0) {
		if p.id != b.all(0)[0].id {
			t.Errorf("%s has the id %s", p, p.id)
		}
	}
	testkit.Eventually(t, patience, func() error {
		got := b.db.QueryStrings(t, `SELECT concat_ws(' ', name, sequence, attempts > 0, failure LIKE '%refused%',
			failure LIKE '%status 418%') FROM notifications WHERE condition = 'effects_needing_review' ORDER BY name`)
		if diff := cmp.Diff([]string{"mute 0 t f t", "nobody 0 t t f", "oncall 1 f f f"}, got); diff != "" {
			return fmt.Errorf("%s", diff)
		}
		return nil
	})
}

// A mail has a summary, the count, the first ids and the command to run. A test notice says that it
// is a test.
func TestWatcher_mailRecipient_getsSummaryAndCommand(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: post, mail: [ops@example.com, Jo <jo@example.com>], `+
		`conditions: [effects_awaiting_approval]}}`)
	for id := range 7 {
		b.insertEffect(t, id+1, "awaiting_approval")
	}
	b.watch(t)
	testkit.Eventually(t, patience, func() error {
		if len(b.mails.Accepted()) == 0 {
			return fmt.Errorf("no mail")
		}
		return nil
	})
	m := b.mails.Accepted()[0]
	for _, text := range []string{"\r\nSubject: Postern: 7 effects await approval\r\n",
		"\r\n1, 2, 3, 4, 5, and more\r\n", "\r\npostern effects list --state awaiting_approval, and postern effects " +
			"show 1\r\n",
		"\r\nAuto-Submitted: auto-generated\r\n", "@shop.example>\r\n"} {
		if !strings.Contains(m.Message, text) {
			t.Errorf("%q is not in %s", text, m.Message)
		}
	}
	if strings.Join(m.To, " ") != "ops@example.com jo@example.com" {
		t.Error(m.To)
	}
	r := notify.Recipients(b.cfg)[0]
	if err := notify.Test(t.Context(), &r, time.Now()); err != nil ||
		!strings.Contains(b.mails.Accepted()[len(b.mails.Accepted())-1].Message, "this is a test") {
		t.Error(err)
	}
}

// While one process sends a notification, no other sends it. If that process ends before it records
// the result, another sends it with the same id.
func TestWatcher_twoProcesses_oneNotifies(t *testing.T) {
	t.Parallel()
	b := setup(t, `{oncall: {to: app, path: /alerts, conditions: [effects_needing_review, effects_awaiting_approval]}}`)
	held, hang := make(chan struct{}), make(chan struct{})
	first := true
	b.status = func() int {
		if first {
			first = false
			b.mu.Unlock()
			close(held)
			<-hang
			b.mu.Lock()
		}
		return http.StatusOK
	}
	release := sync.OnceFunc(func() { close(hang) })
	t.Cleanup(release)
	b.insertEffect(t, 1, "needs_review")
	stop := b.watch(t)
	<-held
	b.insertEffect(t, 2, "awaiting_approval")
	b.watch(t)
	// one check reports the reviews first
	b.wantReceived(t, 0, "effects_needing_review began 1", "effects_awaiting_approval began 1")
	stop()
	release()
	b.advanceClock(t, 1)
	b.wantReceived(t, 2, "effects_needing_review began 1", "effects_awaiting_approval lasts 1")
	for _, p := range b.all(2) {
		if p.Data.Condition == "effects_needing_review" && p.id != b.all(0)[0].id {
			t.Errorf("the repetition has another id: %s", p.id)
		}
	}
}
