package examples_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/testkit"
)

// The script compares what the receivers stored with the mirror, after a kill and a redaction. The
// ledger must have nothing that waits for an operator.
func TestReceive(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"node", "python3", "openssl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: install what examples/README.md lists (make prerequisites)", err)
		}
	}
	db := testkit.Database(t)
	out := run(t, db, "receive", advanceClockAtKills(t, db))
	for _, receiver := range []string{"go", "node", "python"} {
		if !strings.Contains(out, receiver+": erase subscription sub_1Postern0Team0001 revision ") {
			t.Errorf("%s did not report the redaction:\n%s", receiver, out)
		}
	}
	got := db.QueryStrings(t, `SELECT DISTINCT rule || ' ' || state FROM effects
		WHERE state NOT IN ('superseded', 'rejected') ORDER BY 1`)
	want := []string{"forward-go done", "forward-node done", "forward-python done"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("effects (-want +got):\n%s", diff)
	}
}
