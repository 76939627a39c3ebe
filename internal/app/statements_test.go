package app_test

import (
	"fmt"
	"testing"

	"github.com/postern-gateway/postern/internal/access"
	"github.com/postern-gateway/postern/internal/audit"
	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/hindsight"
	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/effects/windows"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/idempotency"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/notify"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/verify"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Every SQL statement of the product fits the migrated schema.
func TestStatementsFitTheSchema(t *testing.T) {
	t.Parallel()
	conn, err := testkit.Database(t).Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for name, statements := range map[string][]string{"events": events.Statements(), "ingest": ingest.Statements(),
		"processor": processor.Statements(), "versioning": versioning.Statements(), "runs": runs.Statements(), "redaction": redaction.Statements(), "retention": retention.Statements(),
		"rebuild": rebuild.Statements(), "reconcile": reconcile.Statements(), "access": access.Statements(), "audit": audit.Statements(), "idempotency": idempotency.Statements(), "verify": verify.Statements(), "doctor": doctor.Statements(),
		"effects": effects.Statements(), "notify": notify.Statements(), "effects/runner": runner.Statements(), "effects/hindsight": hindsight.Statements(), "effects/windows": windows.Statements()} {
		if len(statements) == 0 {
			t.Errorf("%s lists none", name)
		}
		for i, sql := range statements {
			if _, err := conn.Conn().Prepare(t.Context(), fmt.Sprint(name, i), sql); err != nil {
				t.Errorf("%s, statement %d: %v\n%s", name, i, err, sql)
			}
		}
	}
}
