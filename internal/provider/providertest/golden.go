package providertest

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Golden compares what each event of each sample is read as, its identity and its observation, with a file; it writes the file if
// update is set.
func Golden(t *testing.T, s Suite, file string, update bool) {
	t.Helper()
	var got bytes.Buffer
	for _, sample := range s.Provider.Samples() {
		for _, said := range s.ObservedAll(t, s.Deliver(t, s.Source, sample)) {
			e := said.Event
			fmt.Fprintf(&got, "%s\n  key %s\n  fingerprint %x\n  account %q object %s %s\n  occurred %s api %s\n  %s\n", e.Type, e.Key, e.Fingerprint,
				e.Account, e.ObjectType, e.ObjectID, e.OccurredAt.Format(time.RFC3339Nano), e.APIVersion, Summary(said.Observation, said.Err))
		}
	}
	if update {
		if err := os.WriteFile(file, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("samples are read otherwise (run with -update if that is right):\n%s", diff)
	}
}
