package redaction_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
)

// What was received before a sender's request and came out of a spool after it is what the request asks for, found by value, by object, or by what an object shows; what was received after it is not,
// also where it was in the log first.
func TestRequestsMeanWhatWasReceivedBefore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	asked := time.Now().UTC()
	at := func(after time.Duration, object string) int64 {
		t.Helper()
		b.n++
		ids := b.storeAt(t, asked.Add(after), object, body(object, 1, email), fmt.Sprint("k", b.n))
		b.apply(t, 0, ids...)
		return ids[0]
	}
	at(time.Minute, "early") // another gateway's, while the request was in a spool
	b.n++
	order := b.byEmail(t, email)
	shown, err := redaction.NewFind("$.customer.email", email)
	if err != nil {
		t.Fatal(err)
	}
	order.Finds = append(order.Finds, shown)
	order.Until = b.storeAt(t, asked, "asks", body("asks", 1, "nobody@else.org"), fmt.Sprint("k", b.n))[0]
	at(-time.Minute, "drained")
	at(-time.Minute, "named")
	at(time.Minute, "late")
	dropped := at(-time.Minute, "dropped")
	named := redaction.Order{Until: order.Until, Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: "named"}}}
	if h := b.do(t, named); h.Counts[redaction.CountEvents] != 1 {
		t.Errorf("by object: %v", h.Counts)
	}
	b.db.Exec(t, `ALTER TABLE events DISABLE TRIGGER USER`)
	b.db.Exec(t, `DELETE FROM events WHERE id = $1`, dropped)
	if h := b.do(t, order); h.Counts[redaction.CountEvents] != 1 || h.Counts[redaction.CountObjects] != 2 {
		t.Errorf("by value: %v", h.Counts)
	}
	for object, want := range map[string]string{"early": email, "drained": "nothing", "named": "nothing", "dropped": "nothing", "late": email} {
		if is := b.state(t, object); is != want {
			t.Errorf("%s has %s, want %s", object, is, want)
		}
	}
}

// What is acknowledged and in a gateway's spool is redacted as well: the run waits until it is in the log.
func TestRedactionWaitsForSpools(t *testing.T) {
	t.Parallel()
	b := setup(t)
	runner := &redaction.Runner{Pool: b.pool, Processor: b.proc}
	carry := func() (runs.Status, error) {
		t.Helper()
		var status runs.Status
		h, err := runs.Take(t.Context(), b.pool, "test", time.Minute, redaction.Job)
		if err != nil || h == nil {
			t.Fatal(h, err)
		}
		if status, err = runner.Carry(t.Context(), h, slog.New(slog.DiscardHandler)); err == nil {
			return status, h.End(t.Context(), runs.Done, "")
		}
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		return status, err
	}
	gateway := b.db.Role(t, "gateway")
	say := func(sql string) {
		t.Helper()
		if _, err := gateway.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	b.event(t, "a", 1_000_000, email)
	say(`INSERT INTO spools (spool, place, empty_at) VALUES ('one', 'here:/spool', clock_now()), ('two', 'there:/spool', '-infinity')`)
	b.ask(t, b.byEmail(t, email))
	say(`UPDATE spools SET empty_at = clock_now() WHERE spool = 'one'`)
	if _, err := carry(); err == nil || !strings.Contains(err.Error(), "the spool there:/spool says") || !strings.Contains(err.Error(), "postern spool forget two") {
		t.Fatalf("it does not wait: %v", err)
	}
	if left := b.rows(t, `SELECT count(*)::text FROM redacted`); left[0] != "0" {
		t.Errorf("%s events are redacted already", left[0])
	}
	b.event(t, "a", 2_000_000, email) // out of the spool
	say(`UPDATE spools SET empty_at = clock_now() WHERE spool = 'two'`)
	if _, err := carry(); err != nil {
		t.Fatal(err)
	}
	if found := b.holding(t, email); len(found) != 0 {
		t.Errorf("it is still in %v", found)
	}
	// A gateway that is gone for good is no reason to wait for ever; an operator says so.
	say(`UPDATE spools SET empty_at = '-infinity' WHERE spool = 'two'`)
	b.event(t, "b", 1_000_000, email)
	b.ask(t, b.byEmail(t, email))
	say(`UPDATE spools SET empty_at = clock_now() WHERE spool = 'one'`)
	if _, err := redaction.ForgetSpool(t.Context(), b.operator, "two", true); err != nil {
		t.Fatal(err)
	}
	if _, err := carry(); err != nil {
		t.Fatal(err)
	}
}

// A spool is listed with what was told of it and who waits for it, and forgotten by name; one that a gateway told of a moment ago, or that one of an earlier version told of last, only by force.
func TestSpoolsAreForgotten(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `INSERT INTO spools (spool, place, known_at, empty_at, told_at, deliveries, bytes) VALUES
		('earlier', 'here:/spool', null, '-infinity', null, null, null),
		('back', 'there:/spool', '2026-01-01Z', now() - interval '1 h', now() - interval '2 h', 3, 100),
		('earlier full', 'here:/spool', '2026-01-01Z', now() - interval '1 h', null, null, null),
		('gone', 'there:/spool', '2026-01-01Z', '2026-01-02Z', now() - interval '6 min', 3, 100),
		('here', 'here:/spool', '2026-01-01Z', '-infinity', now(), 3, 100),
		('untold', 'there:/spool', '2026-01-01Z', now() + interval '1 h', null, null, null)`)
	before := b.ask(t, b.byEmail(t, email))
	said := func(s *redaction.Spool) string {
		told := "nothing"
		if s.Deliveries != nil && s.Bytes != nil {
			told = fmt.Sprint(*s.Deliveries, " ", *s.Bytes)
		}
		return fmt.Sprint(s.Name, " ", s.Place, " ", s.KnownSince, " ", !s.ToldAt.IsZero(), " ", !s.EmptyAt.IsZero(), " ", told, " ", s.Redactions)
	}
	var listed []string
	for cursor := ""; ; {
		page, err := redaction.Spools(t.Context(), b.operator, cursor, 3)
		if err != nil {
			t.Fatal(err)
		}
		for i := range page.Items {
			listed = append(listed, said(&page.Items[i]))
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	since := "2026-01-01T00:00:00.000000Z"
	if diff := cmp.Diff([]string{
		fmt.Sprintf("back there:/spool %s true true 3 100 [%d]", since, before),
		fmt.Sprintf("earlier here:/spool  false false nothing [%d]", before),
		fmt.Sprintf("earlier full here:/spool %s true true nothing [%d]", since, before),
		fmt.Sprintf("gone there:/spool %s true true 3 100 [%d]", since, before),
		fmt.Sprintf("here here:/spool %s true false 3 100 [%d]", since, before),
		fmt.Sprintf("untold there:/spool %s true true nothing []", since),
	}, listed); diff != "" {
		t.Error(diff)
	}
	for _, c := range []struct {
		name  string
		force bool
		err   error
	}{{"none", true, events.ErrNotFound}, {"here", false, events.ErrInvalid}, {"untold", false, events.ErrInvalid}, {"here", true, nil}, {"here", true, events.ErrNotFound}, {"gone", false, nil},
		{"earlier", false, events.ErrInvalid}, {"earlier full", false, events.ErrInvalid}, {"back", false, events.ErrInvalid}, {"earlier", true, nil}, {"earlier full", true, nil}, {"back", true, nil}} {
		s, err := redaction.ForgetSpool(t.Context(), b.operator, c.name, c.force)
		if !errors.Is(err, c.err) || err == nil && (s.Name != c.name || len(s.Redactions) != 1) {
			t.Errorf("%s, force %t: %+v, %v", c.name, c.force, s, err)
		}
	}
	if left := b.rows(t, `SELECT spool FROM spools`); len(left) != 1 || left[0] != "untold" {
		t.Errorf("left are %v", left)
	}
}
