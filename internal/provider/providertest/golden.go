package providertest

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/golden"
)

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
	golden.Page(t, file, got.String())
}
