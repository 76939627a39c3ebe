package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
)

// settlement begins a look that is to win over all that was received so far. It waits for the API's lag, so that the answer cannot be older than what it wins over.
func (w *work) settlement(ctx context.Context) *provider.Settlement {
	began := time.Now().UTC().Truncate(time.Microsecond)
	runs.Pause(ctx, w.source.Reader.Lag())
	return &provider.Settlement{Before: began, Who: w.hold.Who, Reason: w.hold.Reason}
}

// settleKey is the key of a look that settles its object. It is another event than the look that saw the same and settled nothing, but in one run the same.
func settleKey(look string, proof []byte) string { return worded("settle:", look, proof) }

// worded is the key of a look that came of a person's word, which the proof has.
func worded(prefix, look string, proof []byte) string {
	digest := sha256.Sum256(append([]byte(look), proof...))
	return prefix + hex.EncodeToString(digest[:16])
}
