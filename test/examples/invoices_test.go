package examples_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/testkit"
)

// The script checks invoices and mails. The ledgers show that the kill interrupted the import,
// which another process continued, and two mails, for which the mail service was checked.
func TestInvoices(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	run(t, db, "invoices", advanceClockAtKills(t, db))
	got := db.QueryStrings(t, `SELECT concat_ws(' ', (SELECT count(*) FROM events), 'events,', (SELECT count(*)
		FROM objects),
		'objects,', (SELECT count(*) FROM effects WHERE state = 'done'), 'effects,',
		(SELECT count(*) >= 5 FROM effects WHERE lease_epoch > 1), 'some of which were in doubt,', (SELECT count(*)
			FROM effect_steps WHERE attempts > 1), 'sent again,', (SELECT count(*) FROM runs WHERE status <> 'done'),
			'runs not done')`)
	if diff := cmp.Diff([]string{"250 events, 250 objects, 50 effects, t some of which were in doubt, 0 sent again, " +
		"0 runs not done"}, got); diff != "" {
		t.Errorf("stored data (-want +got):\n%s", diff)
	}
}
