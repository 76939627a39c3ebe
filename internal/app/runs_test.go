package app_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// setClockAhead sets the database's clock forward.
func (b *testBundle) setClockAhead(t *testing.T, by string) {
	t.Helper()
	b.db.Exec(t, `CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
		'SELECT clock_timestamp() + interval ''`+by+`'''`)
}

// waitSchedule waits until a schedule has a state.
func (b *testBundle) waitSchedule(t *testing.T, name string,
	ready func(*runs.ScheduleState) bool) (s *runs.ScheduleState) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() (err error) {
		if s, err = runs.ShowSchedule(t.Context(), b.db.Pool, name); err == nil && !ready(s) {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
	return s
}

// runEnds returns the messages in the feed of runs, by subject and run.
func (b *testBundle) runEnds(t *testing.T, want int) (ends map[string]map[string]any) {
	t.Helper()
	nc, err := nats.Connect(b.nats.URL)
	testkit.Must(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	testkit.Must(t, err)
	testkit.Eventually(t, time.Minute, func() error {
		s, err := js.Stream(t.Context(), stream.RunsStream)
		if err != nil {
			return err
		}
		ends = map[string]map[string]any{}
		for i := range s.CachedInfo().State.LastSeq {
			m, err := s.GetMsg(t.Context(), i+1)
			if err != nil {
				return err
			}
			var body map[string]any
			if err := json.Unmarshal(m.Data, &body); err != nil {
				return err
			}
			ends[fmt.Sprint(m.Subject, " ", body["run"])] = body
		}
		if len(ends) != want {
			return fmt.Errorf("%d of %d: %v", len(ends), want, ends)
		}
		return nil
	})
	return ends
}

const oftenSchedule = `schedules:
  often: {job: replay, cron: '0 * * * *', time_zone: Europe/Berlin, parameters: {source: a, rate: 50}}
`

// Configured schedules are planned, executed and published, also if JetStream was unavailable at
// the end of a run, and follow a reload.
func TestSchedules_configured_runAndPublishEnds(t *testing.T) {
	t.Parallel()
	r := newReloading(t, nil)
	r.head += oftenSchedule
	r.begin(t, source("a", "s"), app.Options{Gateway: true, Processor: true, Tune: func(tuning *app.Tuning) {
		tuning.Runs.PollInterval, tuning.Runs.PublishRetryInterval = 100*time.Millisecond, 100*time.Millisecond
	}})
	r.mustPost(t, "a", delivery(t, "s"))
	s := r.waitSchedule(t, "often", func(s *runs.ScheduleState) bool { return s.Planned })
	if s.LastRun != 0 || s.Next.IsZero() || s.TimeZone != "Europe/Berlin" || s.Parameters["rate"] != "50" {
		t.Errorf("%+v", s)
	}
	done := func(run int64) func(*runs.ScheduleState) bool {
		return func(s *runs.ScheduleState) bool {
			return s.LastRun == run && s.LastStatus == runs.Done && !s.SucceededAt.IsZero()
		}
	}
	r.setClockAhead(t, "1 h")
	r.waitSchedule(t, "often", done(1))
	end := r.runEnds(t, 1)["postern.runs.replay.done 1"]
	counts, _ := end["counts"].(map[string]any)
	if end["schema"] != 1.0 || end["schedule"] != "often" || end["planned_at"] == nil || end["lease_owner"] != nil ||
		end["stalled_since"] != nil ||
		counts["processed"] != 1.0 {
		t.Errorf("published %v", end)
	}
	r.nats.Stop(t)
	r.setClockAhead(t, "2 h")
	r.waitSchedule(t, "often", done(2))
	r.nats.Restart(t)
	if end := r.runEnds(t, 2); end["postern.runs.replay.done 2"] == nil {
		t.Errorf("published %v", end)
	}
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, "run=2") && !strings.Contains(line, "job=replay") {
			t.Errorf("a log line of run 2 has no job: %s", line)
		}
	}
	if !strings.Contains(r.log.String(), `msg="applied batch" run=2 job=replay schedule=often`) {
		t.Errorf("no log line of a batch has its run:\n%s", r.log)
	}
	r.head = strings.Replace(r.head, "'0 * * * *'", "'0 4 1 1 *'", 1)
	r.write(t, source("a", "s"))
	r.reload(t, "ok")
	r.waitSchedule(t, "often", func(s *runs.ScheduleState) bool {
		return s.Cron == "0 4 1 1 *" && s.Next.YearDay() == 1
	})
	r.head = strings.Replace(r.head, "job: replay", "job: repaly", 1)
	r.write(t, source("a", "s"))
	r.reload(t, "failed")
	const want = `postern.yaml:6: schedules.often.job: job \"repaly\" cannot be scheduled: ` +
		`use one of reconcile, replay, retention, retry`
	testkit.Eventually(t, time.Minute, func() error { // the counter changes before the log line
		if !strings.Contains(r.log.String(), want) {
			return fmt.Errorf("want %s in\n%s", want, r.log)
		}
		return nil
	})
}

// Invalid schedules are reported with their line before anything runs.
func TestCheckSchedules_invalidSchedules_areReported(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"{job: sweep, cron: '@daily'}",
			`line 3: schedules.x.job: job "sweep" cannot be scheduled: use one of reconcile, replay, retention, retry`},
		{"{job: replay, cron: '@daily', parameters: {sorce: a}}",
			`line 3: schedules.x.parameters: invalid: parameter "sorce" does not exist`},
		{"{job: replay, cron: '@daily', parameters: {rate: fast}}", `schedules.x.parameters: invalid: rate "fast"`},
		{"{job: replay, cron: '@daily', parameters: {since: soon}}", `schedules.x.parameters: invalid: since "soon"`},
		{"{job: replay, cron: '@daily', parameters: {idempotency_key: k}}",
			`idempotency_key has no effect in a schedule`},
		{"{job: replay, cron: '@daily', parameters: {source: nobody}}",
			`line 3: schedules.x.parameters.source: source "nobody" is not configured`},
		{"{job: replay, cron: '@daily', parameters: {publish: perhaps}}", `publish "perhaps": give true or false`},
		{"{job: retention, cron: '@daily'}", `no age is set`},
		{"{job: retention, cron: '@daily', parameters: {keys: 5}}", `keep keys at least as long as events`},
		{"{job: retention, cron: '@daily', parameters: {bodies: soon}}", `bodies "soon" is not a number`},
		{"{job: retention, cron: '@daily', parameters: {bodies: 99999}}", `the maximum is 36500 days`},
		{"{job: retry, cron: '@daily', parameters: {status: dead, since: 2d}}", ""},
		{"{job: retry, cron: '@daily', parameters: {status: applied}}", `status "applied" is not a valid value`},
		{"{job: retention, cron: '@daily', parameters: {bodies: 30, export: archive}}",
			`export "archive": give an absolute path`},
		{"{job: retention, cron: '@daily', parameters: {runs: 30, export: /archive}}",
			`no day of the log is dropped: give bodies`},
		{"{job: retention, cron: '@daily', parameters: {bodies: 30, export: /archive}}", ""},
		{"{job: reconcile, cron: '*/15 * * * *', parameters: {account: acct_1}}", `name the source to reconcile`},
		{"{job: reconcile, cron: '*/15 * * * *', parameters: {source: nobody}}", `source "nobody" is not configured`},
		{"{job: reconcile, cron: '@daily', parameters: {source: x, object_id: cus_1}}", `name its type too`},
		{"{job: reconcile, cron: '@daily', parameters: {source: x, account: a, all_accounts: true}}",
			`give one of them`},
		{"{job: retention, cron: '@daily', parameters: {bodies: 30}}", ""},
		{"{job: replay, cron: '@daily', parameters: {object_type: a, object_id: b}}", ""},
		{"{job: replay, cron: '@daily', parameters: {mode: force, publish: true, rate: 5, since: 25h}}", ""},
	} {
		text, want := c[0], c[1]
		cfg, err := config.Parse([]byte("database: {url: postgres://x}\nschedules:\n  x: "+text+"\n"),
			func(string) string { return "" })
		testkit.Must(t, err)
		err = app.CheckSchedules(cfg)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	cfg := config.Default()
	cfg.Schedules = map[string]*config.Schedule{"x": {Job: "sweep"}}
	var p *settings.Problem
	if _, err := app.New(t.Context(), app.Options{Config: cfg, Processor: true}); !errors.As(err, &p) ||
		p.Path != "schedules.x.job" {
		t.Errorf("the app starts: %v", err)
	}
}

// A shop's erasure requests are executed automatically for sources that are configured so, also in
// the feeds, and for no others. Requests from before the reload that enables it are included.
func TestRedactOnRequest_configuredSource_redactsAutomatically(t *testing.T) {
	t.Parallel()
	const shop = "  shop:\n    provider: shopify\n    account: postern-demo.myshopify.com\n    secrets: [{name: s, " +
		"value: whsec_secret_of_a_test}]\n"
	r := newReloading(t, nil)
	r.begin(t, shop, app.Options{Gateway: true, Processor: true, Tune: func(tuning *app.Tuning) {
		tuning.SenderRequestsInterval, tuning.Runs.PollInterval = 20*time.Millisecond, 100*time.Millisecond
		tuning.Processor.RepublishInterval, tuning.Processor.RepublishMinAge = 50*time.Millisecond, 10*time.Millisecond
	}})
	request := r.mustPost(t, "shop", r.sign(t, "shop", "customers/redact", 1, time.Now()))
	r.outcome(t, request.ID)
	r.waitTrue(t, `SELECT EXISTS (SELECT FROM checkpoints WHERE job = 'republisher' AND cursor >= $1::bigint)`,
		request.ID)
	r.waitTrue(t, `SELECT NOT EXISTS (SELECT FROM runs) AND EXISTS (SELECT FROM events WHERE id = $1::bigint
		AND body IS NOT NULL)`, request.ID)
	r.write(t, shop+"    redact_on_request: true\n")
	r.hangup <- struct{}{}
	r.waitTrue(t, `SELECT body IS NULL FROM events WHERE id = $1::bigint`, request.ID)
	// Its message, and copies if the republisher was faster than the outcome.
	r.waitTrue(t, `SELECT EXISTS (SELECT FROM runs WHERE status = 'done' AND params->>'requested_by' = $1
		AND (counts->>'messages')::int >= 1)`, request.ID)
}

// waitTrue waits until a query returns true.
func (b *testBundle) waitTrue(t *testing.T, sql string, args ...any) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		var yes bool
		if err := b.db.Pool.QueryRow(t.Context(), sql, args...).Scan(&yes); err != nil || !yes {
			return fmt.Errorf("%s: %t, %v", sql, yes, err)
		}
		return nil
	})
}

// paidRule is a destination and a rule about paid invoices.
func paidRule(url string, version int) string {
	return fmt.Sprintf(`destinations:
  mail: {url: %q, key: {value: key-of-mail}, allow: [127.0.0.1]}
effects:
  receipt:
    source: a
    type: invoice
    when: new.status == "paid"
    key: "receipt:{{ new.id }}"
    rule_version: %d
    steps: [{name: send, to: mail, path: "/mail", json: {invoice: "{{ new.id }}"}, capture: {id: id}}]
`, url, version)
}

// waitEffects waits until the given number of effects is done, and no others exist.
func (r *reloading) waitEffects(t *testing.T, want int) {
	t.Helper()
	r.waitRows(t, want, `effects WHERE state = 'done'`)
	r.db.WantRows(t, want, `effects`)
}

// withRule replaces the configuration by one with a rule, which a reload loads.
func (r *reloading) withRule(t *testing.T, rule string) {
	t.Helper()
	replace(t, r.file, r.head+"sources:\n"+source("a", "one")+rule)
	r.reload(t, "ok")
}

// A change causes its effect once: not again for a duplicate or for an unrelated change. A new
// version of the rule, loaded at runtime, repeats it intentionally. A rule on a schedule is
// evaluated on the objects at its planned time. An effect that needs review causes an alert to the
// currently configured recipient.
func TestEffects_changesAndSchedules_executeOnceAndAlert(t *testing.T) {
	t.Parallel()
	r := startReloading(t, source("a", "one"), time.Hour)
	begun := time.Now().Add(-time.Minute)
	paid := func(n int) { // a second apart, so that their order is known
		t.Helper()
		r.outcome(t, r.mustPost(t, "a", r.sign(t, "a", "invoice.paid", n, begun.Add(time.Duration(n)*time.Second))).ID)
	}
	other := sink.New(t)
	paid(1)
	r.waitEffects(t, 0) // no rule is loaded
	r.withRule(t, paidRule(other.URL, 1))
	paid(2)
	paid(2)
	r.waitEffects(t, 1)
	calls := other.Calls()
	if len(calls) != 1 || calls[0].Header.Get("Authorization") != "Bearer key-of-mail" ||
		!strings.HasPrefix(calls[0].Key, "postern-") || !strings.HasPrefix(fmt.Sprint(calls[0].JSON(t)["invoice"]),
		"in_") {
		t.Errorf("%+v", calls)
	}
	r.withRule(t, paidRule(other.URL, 2))
	paid(3) // version 2 of the rule has an effect of the first change, but not of the second
	paid(4)
	r.waitEffects(t, 2)
	testkit.Eventually(t, time.Minute, func() error {
		if log := r.log.String(); !strings.Contains(log, " effects=1\n") ||
			!strings.Contains(log, " effects_known=1\n") {
			return fmt.Errorf("the log has no planned effect, or no effect that was known:\n%s", log)
		}
		return nil
	})
	r.db.WantRows(t, 0, `effect_steps WHERE request::text LIKE '%key-of-mail%'`)

	scheduled := `schedule: {cron: "0 0 * * *"}`
	r.withRule(t, strings.Replace(paidRule(other.URL, 3), `when: new.status == "paid"`, scheduled, 1))
	r.waitRows(t, 1, `effect_windows`)
	r.setClockAhead(t, "24 hours")
	r.waitRows(t, 1, `effects WHERE rule_version = 3 AND state = 'done'`)

	before := len(other.Calls())
	rule := strings.Replace(paidRule(other.URL, 4), "    rule_version", "    approval: required\n    rule_version", 1)
	r.withRule(t, rule+"notify:\n  oncall: {to: mail, path: /alerts, after: 1s}\n")
	paid(5)
	testkit.Eventually(t, time.Minute, func() error {
		if calls := other.Calls()[before:]; len(calls) != 1 || calls[0].Path != "/alerts" ||
			!strings.Contains(calls[0].Body, `"condition":"effects_awaiting_approval","state":"began","count":1`) {
			return fmt.Errorf("calls: %+v", calls)
		}
		return nil
	})
}
