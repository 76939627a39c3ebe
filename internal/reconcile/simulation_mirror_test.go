package reconcile_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/versioning"
)

// applyToWebhooksOnly applies a webhook to the mirror of webhooks alone, with the version rule.
func (l *simulation) applyToWebhooksOnly(d *events.Delivery) {
	e := d.Events[0]
	obs, err := l.reconcileSource.Provider.Observe(l.reconcileSource.Config,
		&provider.StoredEvent{Key: e.Key, Type: e.Type, Account: e.Account,
			APIVersion: e.APIVersion, Origin: d.Origin, ReceivedAt: d.ReceivedAt, Body: d.Body})
	l.must(err)
	if obs.Ignored != "" {
		return
	}
	in, err := versioning.InputFromObservation(obs, d.ReceivedAt)
	l.must(err)
	k := versioning.Key{Source: l.reconcileSource.Number,
		Account: cmp.Or(obs.Account, l.reconcileSource.Config.Account), Type: obs.ObjectType, ID: obs.ObjectID}
	if l.webhooksOnly[k] == nil {
		row := versioning.NewRow()
		l.webhooksOnly[k] = &row
	}
	versioning.Apply(l.webhooksOnly[k], in)
}

// keyOf returns the mirror's key of an object.
func (l *simulation) keyOf(b liveObject) versioning.Key {
	return versioning.Key{Source: l.reconcileSource.Number, Account: b.Account, Type: b.Type, ID: b.ID}
}

// stateHash returns the hash of the state of an account's object.
func (l *simulation) stateHash(objectType string, body []byte) versioning.Hash {
	if h, ok := l.hashes[string(body)]; ok {
		return h
	}
	v, err := canonical.Parse(body)
	l.must(err)
	var volatile []string
	switch objectType {
	case "invoice":
		volatile = []string{"webhooks_delivered_at", "hosted_invoice_url", "invoice_pdf"}
	case "charge":
		volatile = []string{"receipt_url"}
	}
	l.hashes[string(body)] = versioning.NewState(v, false, volatile).Hash
	return l.hashes[string(body)]
}

// comparableState returns a state without the fields that only one side contains.
func (l *simulation) comparableState(body []byte) (object map[string]any) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber() // ids are too large for a float
	l.must(d.Decode(&object))
	for _, field := range l.uncomparedFields {
		delete(object, field)
	}
	return object
}

// sameState reports whether a stored state equals the object.
func (l *simulation) sameState(b liveObject, deleted bool, hash versioning.Hash, state []byte) bool {
	switch {
	case deleted || b.Body == nil:
		return deleted && b.Body == nil
	case l.fake != nil:
		return hash == l.stateHash(b.Type, b.Body)
	}
	return len(state) > 0 && gocmp.Equal(l.comparableState(state), l.comparableState(b.Body))
}

// Names of counts: objects that differ with webhooks alone, refetched objects, and refetches.
const (
	countDiffering        = "objects differing"
	countRefetchedObjects = "objects refetched"
	countRefetches        = "refetches"
)

// webhooksOnlyDifferences returns how many objects differ with webhooks alone.
func (l *simulation) webhooksOnlyDifferences() (n int) {
	for _, b := range l.objects() {
		row := l.webhooksOnly[l.keyOf(b)]
		switch {
		case row == nil && b.Body == nil && l.fake == nil:
		case row == nil, !l.sameState(b, row.State.Deleted, row.State.Hash, row.State.JSON):
			n++
		}
	}
	return n
}

const mirrorRowsSQL = `SELECT account, object_type, object_id, state_hash, deleted, ambiguous, refetch_after,
	coalesce(state::text, '')
	FROM objects WHERE source = $1 ORDER BY 1, 2, 3`

// compareMirror records the differences between the mirror and the provider.
func (l *simulation) compareMirror(when string) {
	truth := map[versioning.Key]liveObject{}
	for _, b := range l.objects() {
		truth[l.keyOf(b)] = b
	}
	rows, err := l.db.Pool.Query(context.Background(), mirrorRowsSQL, l.reconcileSource.Number)
	l.must(err)
	k := versioning.Key{Source: l.reconcileSource.Number}
	var hash []byte
	var deleted, ambiguous bool
	var after int64
	var state string
	var differ []func()
	_, err = pgx.ForEachRow(rows, []any{&k.Account, &k.Type, &k.ID, &hash, &deleted, &ambiguous, &after, &state},
		func() error {
			b := truth[k]
			delete(truth, k)
			if ambiguous || after != 0 || !l.sameState(b, deleted, versioning.Hash(hash), []byte(state)) {
				is := fmt.Sprintf("is (deleted %t, ambiguous %t, refetch after %d)\n%s", deleted, ambiguous, after,
					state)
				of := k
				differ = append(differ, func() {
					l.fail("%s: %s %s of account %q %s\nand must be, since %s,\n%s\n%s", when, of.Type, of.ID,
						of.Account, is, b.Changed, b.Body, l.objectHistory(of))
				})
			}
			return nil
		})
	l.must(err)
	for _, tell := range differ {
		tell()
	}
	for k, b := range truth {
		if b.Body == nil && (l.fake == nil || l.scanPercent > 0) { // deleted before any webhook
			continue
		}
		l.fail("%s: %s %s of account %q is not in the mirror", when, k.Type, k.ID, k.Account)
	}
}

// finishEra stops the provider, lets time pass and makes a complete reconciliation: the events, the
// pending refetches, and the objects if there are object scans.
func (l *simulation) finishEra() {
	before := *l.scenario
	l.providerStopped, l.killPercent, l.wrongKeyPercent, l.applyFailurePercent = true, 0, 0, 0
	l.counts[countDiffering] += l.webhooksOnlyDifferences()
	l.setKey(keyGood, 0)
	defer func() {
		l.providerStopped, *l.scenario = false, before
		l.setKey(keyGood, 0)
		l.addRefetchCounts()
		l.eraEndedAt = l.Now()
	}()
	l.waitForLists()
	if l.hidePercent > 0 { // objects that are hidden again are deleted in the mirror and must be restored
		for range 3 {
			l.hideRandom()
		}
		l.reconcileUntilDone(l.finalRuns()...)
		l.showAll()
		l.waitForLists()
	}
	l.reconcileUntilDone(l.finalRuns()...)
}

// waitForLists waits for the lists of other providers, which are later than those of an account. An
// event that was not sent yet is in no list.
func (l *simulation) waitForLists() {
	for n := 0; n < 3 && l.fake == nil; n++ {
		l.wait(2 * time.Minute)
		l.deliver()
	}
}

// finalRuns returns the runs of the complete reconciliation in their order.
func (l *simulation) finalRuns() (steps [][]reconcile.Params) {
	var over []reconcile.Params
	for _, account := range l.accounts() {
		if l.fake != nil || len(l.requiredEvents(account)) > 0 {
			over = append(over, reconcile.Params{Scope: reconcile.Events, Account: account})
		}
	}
	if len(over) > 0 {
		steps = append(steps, over)
	}
	if l.scanPercent > 0 {
		steps = append(steps, l.scansOfAllTypes())
	}
	return steps
}

// reconcileUntilDone executes runs and refetches until nothing is left to do.
func (l *simulation) reconcileUntilDone(steps ...[]reconcile.Params) {
	l.wait(2 * l.runner.Limits.ListDelay)
	l.republish()
	var last []int64
	next := func() {
		last = nil
		for _, o := range steps[0] {
			last = append(last, l.startRun(o))
		}
		steps = steps[1:]
	}
	if len(steps) > 0 {
		next()
	}
	for n := range 200 {
		l.wait(time.Duration(max(1, n-50)) * time.Minute) // a request may wait for an hour
		for l.executeRun() {
		}
		for n := 0; l.runRefetchPass() > 0; n++ {
			if n == 1000 {
				l.fail("the refetches do not end")
				return
			}
		}
		l.republish()
		switch {
		case l.recordFailedRuns(last):
			return
		case len(l.pendingWork(last)) > 0:
		case len(steps) > 0:
			next()
		default:
			l.checkRefetches()
			return
		}
	}
	l.fail("the last reconciliation does not end: %v", l.pendingWork(last))
}

// pendingWorkSQL describes the work that is left, including runs that did not succeed ($1). A
// manual request that can never be made counts only if $2 is set.
const pendingWorkSQL = `SELECT format('refetch request of %s %s, tried %s times, due at %s: %s', object_type, object_id,
		attempts, due, error)
	FROM refetch_requests WHERE $2 OR due < 'infinity' OR requested_by = ''
	UNION ALL SELECT format('run %s is %s, deferred: %s', run, status, detail) FROM runs
		WHERE ended_at IS NULL OR run = ANY($1) AND status <> 'done'
	UNION ALL SELECT format('%s %s has a refetch pending after %s', object_type, object_id, refetch_after)
		FROM objects WHERE refetch_after <> 0`

func (l *simulation) pendingWork(last []int64) []string {
	return queryAll[string](l, pendingWorkSQL, last, l.fake != nil)
}

// addRefetchCounts counts the refetches since the last call, except those of extraReads.
func (l *simulation) addRefetchCounts() {
	for key, n := range l.caller.refetched {
		if !l.extraReads[key] {
			l.counts[countRefetchedObjects]++
			l.counts[countRefetches] += n
		}
	}
	clear(l.caller.refetched)
	clear(l.extraReads)
}

// recordFailedRuns records the failed runs among the last ones, and returns whether there are any.
func (l *simulation) recordFailedRuns(last []int64) bool {
	all := queryAll[string](l, `SELECT format('run %s over %s has failed: %s', run, params, detail) FROM runs
		WHERE run = ANY($1) AND status = 'failed'`, last)
	for _, why := range all {
		l.fail("%s", why)
	}
	return len(all) > 0
}

// checkAfterLateWebhooks checks the mirror after the last reconciliation and after all late
// webhooks.
func (l *simulation) checkAfterLateWebhooks() {
	before := l.countLog()
	l.Advance(time.Hour)
	for range 20 {
		l.gatewayDownPercent = 0
		l.deliver()
		l.republish()
		l.Advance(time.Hour)
	}
	if l.fake == nil { // late webhooks request refetches about a time before the watermark
		l.providerStopped, l.killPercent, l.wrongKeyPercent = true, 0, 0
		l.reconcileUntilDone()
		before = l.countLog()
	}
	l.compareMirror("after late webhooks")
	if after := l.countLog(); after != before {
		l.fail("late webhooks changed the log from %[2]s to %[1]s", after, before)
	}
	if l.fake != nil { // with object scans, some events may have been too old to be listed
		if want, got := len(l.fake.Events()), before.events; got != want && !(l.scanPercent > 0 && got < want) {
			l.fail("the log has %d events, and the account has %d", got, want)
		}
	}
	if before.conflicts+before.dead+before.miscounted > 0 {
		l.fail("%s: %v", before, queryAll[string](l, `SELECT DISTINCT reason FROM outcomes WHERE status = 'dead'
			ORDER BY reason LIMIT 3`))
	}
}

// logCounts are counts of the log.
type logCounts struct{ events, refetches, conflicts, dead, miscounted int }

func (n logCounts) String() string {
	return fmt.Sprintf("%d events and %d refetches, %d conflicts, %d dead, %d runs miscounted", n.events, n.refetches,
		n.conflicts, n.dead, n.miscounted)
}

func (l *simulation) countLog() (n logCounts) {
	err := l.db.Pool.QueryRow(context.Background(), `SELECT (SELECT count(*) FROM events
		WHERE event_type <> 'postern.refetch'), (SELECT count(*) FROM events WHERE event_type = 'postern.refetch'),
		(SELECT count(*) FROM event_conflicts), (SELECT count(*) FROM outcomes WHERE status = 'dead'),
		(SELECT count(*) FROM runs r WHERE r.status = 'done' AND r.params ->> 'scope' = 'events'
			AND r.params ->> 'dry_run' IS NULL AND (r.counts ->> 'missing')::bigint <> (SELECT count(*) FROM events e
			WHERE e.verification ->> 'run' = r.run::text))`).
		Scan(&n.events, &n.refetches, &n.conflicts, &n.dead, &n.miscounted)
	l.must(err)
	return n
}
