package reconcile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// ofTombstones is what a person approves who lets a run delete as many objects of each type as it tells of; how many is kept with the types.
const ofTombstones = "tombstones"

// ofKey is what a person approves who takes the source's key for the account's though nothing shows it: that key, in this run. It is a digest of both, so that another key, or another run, asks again.
func (w *work) ofKey() string {
	h := sha256.New()
	fmt.Fprintf(h, "postern run %d %s\n", w.hold.Run.Run, w.source.API.BaseURL)
	h.Write(w.source.API.Key.Value)
	return "key " + hex.EncodeToString(h.Sum(nil)[:16])
}
