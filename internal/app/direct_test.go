package app_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/verify"
)

// An own service's events are applied, verified, replayed and redacted as any provider's, whatever mode they came in; and a key outlives what was stored under it.
func TestDirectFromPostToRedaction(t *testing.T) {
	t.Parallel()
	b := setup(t, func(tuning *app.Tuning) {
		tuning.Runs.Poll = 20 * time.Millisecond
		tuning.Processor.AuditEvery, tuning.Processor.AuditAge = 50*time.Millisecond, 10*time.Millisecond
	})
	const email = "ada.lovelace@example.org"
	push := func(body string, headers ...string) *provider.Delivery {
		d := &provider.Delivery{Header: http.Header{"Authorization": {"Bearer " + string(b.cfg.Sources["api"].Secrets[0].Value)}}, Body: []byte(body)}
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			d.Header.Set(name, value)
		}
		return d
	}
	data := func(version int) string { return fmt.Sprintf(`{"version":%d,"email":%q}`, version, email) }
	structured := func(id string, version int) *provider.Delivery {
		return push(`{"specversion":"1.0","id":"`+id+`","source":"/s","type":"com.example.order.updated","subject":"o1","data":`+data(version)+`}`, "Content-Type: application/cloudevents+json")
	}
	binary := push(data(2), "Content-Type: application/json", "ce-specversion: 1.0", "ce-id: 2", "ce-source: /s", "ce-type: com.example.order.updated", "ce-subject: o1")
	var ids []int64
	for _, d := range []*provider.Delivery{binary, structured("1", 1), structured("3", 3)} {
		r := b.mustPost(t, "api", d)
		id, err := strconv.ParseInt(r.ID, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
		if status, want := b.outcome(t, r.ID), map[bool]string{true: "stale", false: "applied"}[len(ids) == 2]; status != want {
			t.Errorf("event %d is %s, want %s", len(ids), status, want)
		}
	}
	object := func() string {
		return strings.Join(b.db.Rows(t, `SELECT object_type || ' ' || object_id || ' ' || deleted || ' ' || coalesce(state::text, 'null') FROM objects`), "; ")
	}
	want := `order o1 false {"email": "` + email + `", "version": 3}`
	if got := object(); got != want {
		t.Errorf("object %s, want %s", got, want)
	}
	b.soundly(t)
	known := b.known(t)

	run := b.carried(t, runs.Order{Job: replay.Job, Asked: replay.Order{Filter: events.Filter{Source: known.Number["api"]}}})
	if diff := cmp.Diff([]string{"stale", "stale", "unchanged"}, b.db.Rows(t, `SELECT status FROM outcomes WHERE run = $1 ORDER BY status`, run)); diff != "" || object() != want {
		t.Errorf("replayed to %s, outcomes (-want +got):\n%s", object(), diff)
	}

	b.carried(t, runs.Order{Job: redaction.Job, Asked: redaction.Order{Events: ids}, Who: "me", Reason: "she asked for it"})
	if n := b.db.Rows(t, `SELECT count(*)::text FROM events WHERE body IS NOT NULL OR headers <> '{}'`); n[0] != "0" {
		t.Errorf("%s events have their content", n[0])
	}
	if got := object(); strings.Contains(got, email) {
		t.Errorf("object %s", got)
	}
	b.soundly(t)
	if r := b.mustPost(t, "api", binary); !r.Duplicate || r.ID != strconv.FormatInt(ids[0], 10) {
		t.Errorf("sent again after its redaction: %+v", r)
	}
	if status, body := b.post(t, "api", structured("1", 9)); status != http.StatusUnprocessableEntity {
		t.Errorf("other content after the redaction: %d %s", status, body)
	}
	for table, column := range map[string]string{"events": "body", "event_conflicts": "body", "rejections": "body"} {
		if n := b.db.Rows(t, `SELECT count(*)::text FROM `+table+` WHERE `+column+` IS NOT NULL`); n[0] != "0" {
			t.Errorf("%s rows of %s hold what was redacted", n[0], table)
		}
	}
}

func (b *testBundle) known(t *testing.T) events.Sources {
	t.Helper()
	known, err := events.RegisterSources(t.Context(), b.db.Pool, map[string]string{"api": "api"})
	if err != nil {
		t.Fatal(err)
	}
	return known
}

// soundly fails unless all that is stored of the source api is as it must be.
func (b *testBundle) soundly(t *testing.T) {
	t.Helper()
	known := b.known(t)
	sources := map[string]processor.Source{}
	for _, e := range b.cfg.Endpoints() {
		if e.Source.Name == "api" {
			sources["api"] = processor.Source{Number: known.Number["api"], Config: e.Source, Provider: e.Provider}
		}
	}
	report, err := verify.Verify(t.Context(), verify.Options{Pool: b.db.Role(t, "operator"), Known: known, Sources: sources, Most: verify.DefaultMost})
	if err != nil || len(report.Findings) > 0 {
		t.Fatalf("verified: %+v, %v", report, err)
	}
}

// carried asks for a run and waits for its end.
func (b *testBundle) carried(t *testing.T, o runs.Order) int64 {
	t.Helper()
	run, err := runs.Ask(t.Context(), b.db.Role(t, "operator"), o)
	if err != nil {
		t.Fatal(err)
	}
	b.soon(t, `SELECT status = 'done' FROM runs WHERE run = $1::bigint`, strconv.FormatInt(run, 10))
	return run
}
