package reconcile

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// tombstoneApproval is the subject that an operator approves to let a run delete the objects that
// its detail names. The approved number is stored with each type.
const tombstoneApproval = "tombstones"

// keyApproval returns the subject that an operator approves to accept the source's key although no
// account check succeeded. It is a digest of the key and the run, so another key or another run
// needs its own approval.
func (w *execution) keyApproval() string {
	digest := sha256.New()
	fmt.Fprintf(digest, "postern run %d %s\n", w.lease.Run.ID, w.Source.API.BaseURL)
	digest.Write(w.Source.API.Key.Value)
	return "key " + hex.EncodeToString(digest.Sum(nil)[:16])
}
