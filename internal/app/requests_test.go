package app_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/testkit"
)

// What a shop asks to be forgotten is redacted where its source is set so, and nowhere else, in the feeds too; also what it asked for before a reload set it.
func TestRedactOnRequest(t *testing.T) {
	t.Parallel()
	const shop = "  shop:\n    provider: shopify\n    account: postern-demo.myshopify.com\n    secrets: [{name: s, value: whsec_secret_of_a_test}]\n"
	r := startReloading(t, shop, time.Hour)
	stop(t, r.app)
	loader := config.NewLoader(r.file, config.ForGateway, nil)
	var err error
	if r.cfg, err = loader.Load(); err != nil {
		t.Fatal(err)
	}
	r.app = r.startLogged(t, app.Options{Gateway: true, Processor: true, Loader: loader, Hangup: r.hangup, Tune: func(tuning *app.Tuning) {
		patient(tuning)
		tuning.AnswersEvery, tuning.Runs.Poll = 20*time.Millisecond, 20*time.Millisecond
		tuning.Processor.AuditEvery, tuning.Processor.AuditAge = 50*time.Millisecond, 10*time.Millisecond
	}})
	request := r.mustPost(t, "shop", r.sign(t, "shop", "customers/redact", 1, time.Now()))
	r.outcome(t, request.ID)
	r.soon(t, `SELECT EXISTS (SELECT FROM checkpoints WHERE job = 'auditor' AND cursor >= $1::bigint)`, request.ID)
	r.soon(t, `SELECT NOT EXISTS (SELECT FROM runs) AND EXISTS (SELECT FROM events WHERE id = $1::bigint AND body IS NOT NULL)`, request.ID)
	r.write(t, shop+"    redact_on_request: true\n")
	r.hangup <- struct{}{}
	r.soon(t, `SELECT body IS NULL FROM events WHERE id = $1::bigint`, request.ID)
	// Its message, and copies where the auditor was quicker than the outcome.
	r.soon(t, `SELECT EXISTS (SELECT FROM runs WHERE status = 'done' AND asked->>'requested_by' = $1 AND (counts->>'messages')::int >= 1)`, request.ID)
}

// soon waits until a question about an event is answered with yes.
func (b *testBundle) soon(t *testing.T, sql, id string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		var yes bool
		if err := b.db.Pool.QueryRow(t.Context(), sql, id).Scan(&yes); err != nil || !yes {
			return fmt.Errorf("%s: %t, %v", sql, yes, err)
		}
		return nil
	})
}
