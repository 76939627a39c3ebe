package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
)

// newOverwrite starts a refetch that wins over all local history. It waits for the API's lag, so
// that the response cannot be older than the states that it replaces.
func (w *execution) newOverwrite(ctx context.Context) *provider.Overwrite {
	requestedAt := time.Now().UTC().Truncate(time.Microsecond)
	runs.Sleep(ctx, w.source.Reader.Lag())
	return &provider.Overwrite{Before: requestedAt, Actor: w.lease.Actor, Reason: w.lease.Reason}
}

// overwriteKey returns the key of a refetch that overwrites its object. It differs from the key of
// the same refetch without overwriting. Within one run it is the same.
func overwriteKey(refetch string, verification []byte) string {
	return operatorKey("overwrite:", refetch, verification)
}

// operatorKey returns the key of a refetch that an operator requested, as the verification records.
func operatorKey(prefix, refetch string, verification []byte) string {
	digest := sha256.Sum256(append([]byte(refetch), verification...))
	return prefix + hex.EncodeToString(digest[:16])
}
