package processor_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// forwardRule forwards all objects of the simulated source.
func forwardRule(objectType string) *effects.Rules {
	return effects.NewRules([]*rules.Rule{{Name: "forward-app", On: rules.OnRevision, Version: 1, Supersede: true,
		Approval: rules.ApproveNone, Forwards: []rules.Selector{{Source: applied.SourceName, Type: objectType}},
		Steps: []rules.Step{{Name: "send", Destination: "forward-app"}}}})
}

// revise returns an event with the n-th state of an object.
func revise(object string, n int) sim.Event {
	return sim.Event{Object: object, ReceivedAt: time.UnixMicro(sim.Start).UTC(), Body: fmt.Appendf(nil,
		`{"id":"evt_%s_%d","type":"thing.updated","object_id":"%s","unit":1,"rank":1,"time":%d,"object":{"n":%d}}`,
		object, n, object, sim.Start+int64(n)*1000, n)}
}

// planForwards plans all forwards that are due.
func (b *testBundle) planForwards(t *testing.T, p *processor.Processor) {
	t.Helper()
	for more := true; more; {
		var err error
		more, err = processor.PlanForwards(t.Context(), p)
		must(t, err)
	}
}

// forwarded returns the keys and states of the ledger, without the batch.
func (b *testBundle) forwarded(t *testing.T) []string {
	t.Helper()
	return b.DB.QueryStrings(t, `SELECT regexp_replace(key, ':[0-9]+$', '') || ' ' || state || ' '
		|| (template_data #>> '{change,state,n}') FROM effects ORDER BY effect`)
}

// Each new revision is forwarded, and an announced one again. A newer revision supersedes an older
// one that was not sent.
func TestForwards_revisions_arePlannedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, nil, nil)
	p.ReplaceRules(forwardRule("thing"))
	apply := func(evs ...sim.Event) {
		t.Helper()
		must(t, p.Apply(t.Context(), events.LiveRun, b.AppendEvents(t, b.Source, evs)))
	}
	apply(revise("a", 1), revise("b", 1))
	b.planForwards(t, p)
	apply(revise("a", 2))
	apply(revise("a", 3), revise("a", 3)) // a duplicate
	apply(revise("b", 0))                 // stale
	b.planForwards(t, p)
	b.planForwards(t, p)
	prefix := "forward-app:" + applied.SourceName + "/thing/"
	want := []string{prefix + "a:1 superseded 1", prefix + "b:1 planned 1", prefix + "a:3 planned 3"}
	equal(t, "ledger", want, b.forwarded(t))
	b.DB.Exec(t, `UPDATE effects SET state = 'done', due = NULL WHERE state = 'planned'`)
	must(t, errOf(processor.Announce(t.Context(), b.OperatorPool, 0, "")))
	b.planForwards(t, p)
	want = append(want[:1], prefix+"b:1 done 1", prefix+"a:3 done 3", prefix+"a:3 planned 3", prefix+"b:1 planned 1")
	equal(t, "ledger after an announcement", want, b.forwarded(t))
}

// A process without a forward of a type leaves no work behind.
func TestForwards_otherType_isNotPending(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, nil, nil)
	p.ReplaceRules(forwardRule("other"))
	must(t, p.Apply(t.Context(), events.LiveRun, b.AppendEvents(t, b.Source, []sim.Event{revise("a", 1)})))
	equal(t, "pending rows", "0 of 1",
		b.DB.QueryStrings(t, `SELECT count(*) FILTER (WHERE forward_pending) || ' of ' || count(*) FROM outbox`)[0])
}

// A process leaves the changes of a source that it does not have, as during a change of the
// configuration, to those that have the source.
func TestForwards_sourceNotConfigured_staysPending(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.processor(t, nil, nil)
	added := b.AddSource(t, "added")
	now := b.processor(t, nil, nil)
	old.ReplaceRules(forwardRule("thing"))
	now.ReplaceRules(effects.NewRules([]*rules.Rule{{Name: "forward-new", On: rules.OnRevision, Version: 1,
		Forwards: []rules.Selector{{Source: "added", Type: "*"}},
		Steps:    []rules.Step{{Name: "send", Destination: "forward-new"}}}}))
	must(t, now.Apply(t.Context(), events.LiveRun, b.AppendEvents(t, added, []sim.Event{revise("a", 1)})))
	must(t, now.Apply(t.Context(), events.LiveRun, b.AppendEvents(t, b.Source, []sim.Event{revise("b", 1)})))
	b.DB.Exec(t, `UPDATE outbox SET forward_pending = true`) // as a process with both forwards writes them
	b.planForwards(t, old)
	equal(t, "planned by the process without the source", []string{"forward-app:" + applied.SourceName +
		"/thing/b:1 planned 1"}, b.forwarded(t))
	b.planForwards(t, now)
	equal(t, "keys", []string{"forward-app", "forward-new"},
		b.DB.QueryStrings(t, `SELECT split_part(key, ':', 1) FROM effects ORDER BY 1`))
}

// Each writer of several rows of the outbox locks them in the order of their numbers, whatever
// order its plan finds them in.
func TestOutbox_eachWriter_locksInOrder(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(context.Context, *processor.Processor) error{
		"forwards": func(ctx context.Context, p *processor.Processor) error {
			return errOf(processor.PlanForwards(ctx, p))
		},
		"sender": func(ctx context.Context, p *processor.Processor) error {
			return processor.MarkSent(p)(ctx, map[int64]uint64{1: 1, 2: 2, 3: 3})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			p := b.processor(t, nil, nil)
			p.ReplaceRules(forwardRule("thing"))
			b.DB.Exec(t, `INSERT INTO outbox (sources, accounts, types, ids, created_at, forward_pending)
				SELECT '{}', '{}', '{}', '{}', now(), true FROM generate_series(1, 3)`)
			b.DB.Exec(t, `UPDATE outbox SET numbered = true WHERE batch = 1`) // it comes last in the table now
			b.CheckLockOrder(t, "outbox", "batch", "1", func() error { return write(t.Context(), p) })
		})
	}
}

// Processes that apply and plan at the same time end with the latest revision of each object. The
// rows of a plan that fails are planned by the next one.
func TestForwards_severalProcesses_endWithLatestRevision(t *testing.T) {
	t.Parallel()
	const objects, revisions = 5, 8
	b := setup(t)
	var g errgroup.Group
	for i := range 3 {
		p := b.processor(t, nil, nil)
		p.ReplaceRules(forwardRule("*"))
		evs := []sim.Event{}
		for n := range revisions {
			for object := range objects {
				if n%3 == i {
					evs = append(evs, revise(fmt.Sprint(object), n))
				}
			}
		}
		stored := b.AppendEvents(t, b.Source, evs)
		g.Go(func() error {
			for _, e := range stored {
				if err := p.ApplySingle(t.Context(), events.LiveRun, e); err != nil {
					return err
				}
				if _, err := processor.PlanForwards(t.Context(), p); err != nil {
					return err
				}
			}
			return nil
		})
	}
	must(t, g.Wait())
	got := b.DB.QueryStrings(t, `SELECT o.object_id || ' ' || count(*) || ' ' || bool_and(
		(e.template_data #>> '{change,revision}')::bigint = o.revision AND e.template_data #> '{change,state}' = o.state
		AND NOT EXISTS (SELECT FROM effects n WHERE n.object_id = e.object_id AND n.effect > e.effect))
		FROM objects o LEFT JOIN effects e ON e.object_id = o.object_id AND e.state = 'planned' GROUP BY o.object_id
		ORDER BY o.object_id`)
	equal(t, "objects with their unsent effects", []string{"0 1 true", "1 1 true", "2 1 true", "3 1 true", "4 1 true"},
		got)
	if left := b.DB.QueryStrings(t, `SELECT batch::text FROM outbox WHERE forward_pending`); len(left) > 0 {
		t.Errorf("batches %v are not planned", left)
	}
}

// A plan waits for a redaction that is not committed yet, and forwards what the redaction left.
func TestForwards_redactionInProgress_forwardsNoState(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, nil, nil)
	p.ReplaceRules(forwardRule("thing"))
	must(t, p.Apply(t.Context(), events.LiveRun, b.AppendEvents(t, b.Source, []sim.Event{revise("a", 1)})))
	tx := testkit.OpenTx(t, b.DB.Pool, `UPDATE objects SET state = NULL, tied_states = '[]', revision = revision + 1`)
	planned := make(chan error, 1)
	go func() { planned <- errOf(processor.PlanForwards(t.Context(), p)) }()
	b.AwaitAtLeast(t, 1,
		`SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()`)
	must(t, tx.Commit(t.Context()))
	must(t, <-planned)
	equal(t, "forwarded", []string{"2 null true"}, b.DB.QueryStrings(t, `
		SELECT concat_ws(' ', c->>'revision', c->'state', c->>'redacted')
		FROM (SELECT template_data->'change' AS c FROM effects) e`))
}
