package providertest

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the files that the tests of providers compare with")

// Update reports whether the tests write the files that they compare with.
func Update() bool { return *update }

// Golden compares the identity and the observation of each event of each sample with a file. It
// writes the file with the flag -update.
func Golden(t *testing.T, s Suite, file string) {
	t.Helper()
	var got bytes.Buffer
	for _, sample := range s.Provider.Samples() {
		for _, observed := range s.ObservedAll(t, s.Deliver(t, s.Source, sample)) {
			e := observed.Event
			fmt.Fprintf(&got, "%s\n  key %s\n  fingerprint %x\n  account %q object %s %s\n  occurred %s api %s\n  %s\n",
				e.Type, e.Key, e.Fingerprint, e.Account, e.ObjectType, e.ObjectID,
				e.OccurredAt.Format(time.RFC3339Nano), e.APIVersion, Summary(observed.Observation, observed.Err))
		}
	}
	Page(t, file, got.String())
}

// Page compares a generated file with its expected content. It writes the file with the flag
// -update.
func Page(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(have)); diff != "" {
		t.Errorf("%s is not current (run with -update if the change is right):\n%s", file, diff)
	}
}
