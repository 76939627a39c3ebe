package retention

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/postern-gateway/postern/internal/archive"
	"github.com/postern-gateway/postern/internal/events"
)

const exportedSQL = `UPDATE dropped_partitions SET export = $2, updated_at = clock_now() WHERE name = $1`

// export writes the partition into a file, if a folder is set, and reads it back. The partition may
// be dropped only if both are equal, byte for byte. An existing file is compared and never
// overwritten. reason says why the partition must stay.
func (w *work) export(ctx context.Context, p *Partition) (reason string, err error) {
	if w.folder == "" {
		return "", nil
	}
	if err := w.beforeStep("export"); err != nil {
		return "", err
	}
	path := filepath.Join(w.folder, p.Name+".ndjson.zst")
	filter := events.Filter{Since: p.From.Time, Until: p.To.Time}
	requestText := map[string]string{"partition": p.Name}
	_, err = archive.ExportToFile(ctx, archive.ExportParams{Pool: w.Pool, Filter: filter,
		Compression: archive.CompressionByName(path)}, path, requestText, true)
	if err != nil && !errors.Is(err, archive.ErrExists) {
		if ctx.Err() != nil {
			return "", err
		}
		return fmt.Sprintf("it cannot be exported: %v", err), nil
	}
	if err := w.beforeStep("verify"); err != nil {
		return "", err
	}
	n, err := archive.Verify(ctx, w.Pool, path, &filter, p.hi-1)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return fmt.Sprintf("its export cannot be trusted: %v; delete the file, and the next run writes it again", err),
			nil
	}
	exportNote, err := json.Marshal(map[string]any{"file": path, "events": n})
	if err == nil {
		_, err = w.Pool.Exec(ctx, exportedSQL, p.Name, exportNote)
	}
	if err != nil {
		return "", fmt.Errorf("record that %s is exported: %w", p.Name, err)
	}
	w.log.Info("partition exported", "partition", p.Name, "file", path, "events", n)
	return "", nil
}
