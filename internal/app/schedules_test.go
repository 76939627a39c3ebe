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
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// ahead puts the database's clock forward.
func (b *testBundle) ahead(t *testing.T, by string) {
	t.Helper()
	_, err := b.db.Pool.Exec(t.Context(), `CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp() + interval ''`+by+`'''`)
	if err != nil {
		t.Fatal(err)
	}
}

// scheduled waits until a schedule stands so.
func (b *testBundle) scheduled(t *testing.T, name string, so func(*runs.Scheduled) bool) (s *runs.Scheduled) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() (err error) {
		if s, err = runs.ShowSchedule(t.Context(), b.db.Pool, name); err == nil && !so(s) {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
	return s
}

// ends are what the feed of runs has, by subject and run.
func (b *testBundle) ends(t *testing.T, want int) (ends map[string]map[string]any) {
	t.Helper()
	nc, err := nats.Connect(b.nats.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
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

const oftenAndBad = `schedules:
  often: {job: replay, cron: '0 * * * *', time_zone: Europe/Berlin, parameters: {source: a, rate: 50}}
`

// What the configuration plans is planned, carried out and told of, also where JetStream was away at the end of a run, and follows a reload.
func TestSchedulesOfTheConfiguration(t *testing.T) {
	t.Parallel()
	tune := func(tuning *app.Tuning) {
		tuning.Runs.Poll, tuning.Runs.Again = 20*time.Millisecond, 100*time.Millisecond
	}
	r := startReloading(t, source("a", "s"), time.Hour)
	stop(t, r.app)
	r.head += oftenAndBad
	r.write(t, source("a", "s"))
	loader := config.NewLoader(r.file, config.ForGateway, nil)
	var err error
	if r.cfg, err = loader.Load(); err != nil {
		t.Fatal(err)
	}
	r.app = r.startLogged(t, app.Options{Gateway: true, Processor: true, Loader: loader, Hangup: r.hangup, Tune: tune})
	r.mustPost(t, "a", delivery(t, "s"))
	s := r.scheduled(t, "often", func(s *runs.Scheduled) bool { return s.Planned })
	if s.Last != 0 || s.Next.IsZero() || s.TimeZone != "Europe/Berlin" || s.Parameters["rate"] != "50" {
		t.Errorf("%+v", s)
	}
	done := func(run int64) func(*runs.Scheduled) bool {
		return func(s *runs.Scheduled) bool {
			return s.Last == run && s.LastStatus == runs.Done && !s.SucceededAt.IsZero()
		}
	}
	r.ahead(t, "1 h")
	r.scheduled(t, "often", done(1))
	end := r.ends(t, 1)["postern.runs.replay.done 1"]
	counts, _ := end["counts"].(map[string]any)
	if end["schema"] != 1.0 || end["schedule"] != "often" || end["planned_at"] == nil || end["held_by"] != nil || counts["processed"] != 1.0 {
		t.Errorf("told %v", end)
	}
	r.nats.Stop(t)
	r.ahead(t, "2 h")
	r.scheduled(t, "often", done(2))
	r.nats.Restart(t)
	if end := r.ends(t, 2); end["postern.runs.replay.done 2"] == nil {
		t.Errorf("told %v", end)
	}
	for line := range strings.Lines(r.log.String()) {
		if strings.Contains(line, "run=2") && !strings.Contains(line, "job=replay") {
			t.Errorf("a line of a run without its job: %s", line)
		}
	}
	if !strings.Contains(r.log.String(), `msg="applied batch" run=2 job=replay schedule=often`) {
		t.Errorf("no batch names its run:\n%s", r.log)
	}
	r.head = strings.Replace(r.head, "'0 * * * *'", "'0 4 1 1 *'", 1)
	r.write(t, source("a", "s"))
	r.reload(t, "ok")
	r.scheduled(t, "often", func(s *runs.Scheduled) bool { return s.Cron == "0 4 1 1 *" && s.Next.YearDay() == 1 })
	r.head = strings.Replace(r.head, "job: replay", "job: repaly", 1)
	r.write(t, source("a", "s"))
	r.reload(t, "failed")
	testkit.Eventually(t, time.Minute, func() error { // the count comes before the line
		if want := `postern.yaml:6: schedules.often.job: job \"repaly\" cannot be asked for by a schedule: write one of reconcile, replay, retention, retry`; !strings.Contains(r.log.String(), want) {
			return fmt.Errorf("want %s in\n%s", want, r.log)
		}
		return nil
	})
}

// What a job cannot do is said before anything runs, with its line.
func TestSchedulesAreChecked(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{job: sweep, cron: '@daily'}":                                                                 `line 3: schedules.x.job: job "sweep" cannot be asked for by a schedule: write one of reconcile, replay, retention, retry`,
		"{job: replay, cron: '@daily', parameters: {sorce: a}}":                                        `line 3: schedules.x.parameters: invalid: no parameter "sorce"`,
		"{job: replay, cron: '@daily', parameters: {rate: fast}}":                                      `schedules.x.parameters: invalid: rate "fast"`,
		"{job: replay, cron: '@daily', parameters: {since: soon}}":                                     `schedules.x.parameters: invalid: since "soon"`,
		"{job: replay, cron: '@daily', parameters: {once_key: k}}":                                     `once_key means nothing in a schedule`,
		"{job: replay, cron: '@daily', parameters: {source: nobody}}":                                  `line 3: schedules.x.parameters.source: source "nobody" is not configured`,
		"{job: replay, cron: '@daily', parameters: {publish: perhaps}}":                                `publish: want true or false`,
		"{job: retention, cron: '@daily'}":                                                             `no age is set`,
		"{job: retention, cron: '@daily', parameters: {keys: 5}}":                                      `keep keys at least as long as events`,
		"{job: retention, cron: '@daily', parameters: {bodies: soon}}":                                 `bodies "soon" is no number`,
		"{job: retention, cron: '@daily', parameters: {bodies: 99999}}":                                `at most 36500 days`,
		"{job: retry, cron: '@daily', parameters: {status: dead, since: 2d}}":                          "",
		"{job: retry, cron: '@daily', parameters: {status: applied}}":                                  `status "applied" is not known`,
		"{job: retention, cron: '@daily', parameters: {bodies: 30, export: archive}}":                  `export "archive": name the whole path of a folder`,
		"{job: retention, cron: '@daily', parameters: {runs: 30, export: /archive}}":                   `no day of the log is dropped: give bodies`,
		"{job: retention, cron: '@daily', parameters: {bodies: 30, export: /archive}}":                 "",
		"{job: reconcile, cron: '*/15 * * * *', parameters: {account: acct_1}}":                        `name the source to reconcile`,
		"{job: reconcile, cron: '*/15 * * * *', parameters: {source: nobody}}":                         `source "nobody" is not configured`,
		"{job: reconcile, cron: '@daily', parameters: {source: x, object_id: cus_1}}":                  `name its type too`,
		"{job: reconcile, cron: '@daily', parameters: {source: x, account: a, all_accounts: true}}":    `give the one or the other`,
		"{job: retention, cron: '@daily', parameters: {bodies: 30}}":                                   "",
		"{job: replay, cron: '@daily', parameters: {object_type: a, object_id: b}}":                    "",
		"{job: replay, cron: '@daily', parameters: {mode: force, publish: true, rate: 5, since: 25h}}": "",
	} {
		cfg, err := config.Parse([]byte("database: {url: postgres://x}\nschedules:\n  x: "+text+"\n"), func(string) string { return "" })
		if err != nil {
			t.Fatal(err)
		}
		err = app.CheckSchedules(cfg)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	b := &testBundle{db: testkit.Database(t), nats: testkit.JetStream(t), cfg: config.Default()}
	b.cfg.Schedules = map[string]*config.Schedule{"x": {Job: "sweep"}}
	var p *config.Problem
	if _, err := app.New(t.Context(), app.Options{Config: b.cfg, Processor: true}); !errors.As(err, &p) || p.Path != "schedules.x.job" {
		t.Errorf("the app starts: %v", err)
	}
}
