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

const exportedSQL = `UPDATE retired SET export = $2, updated_at = clock_now() WHERE name = $1`

// export writes the partition into a file, where a folder is set, and reads it back: only what is the same, byte for byte, lets the partition go. A file that is there is
// compared and never written over. why says what is wrong with it.
func (w *work) export(ctx context.Context, p *Partition) (why string, err error) {
	if w.folder == "" {
		return "", nil
	}
	if err := w.at("export"); err != nil {
		return "", err
	}
	path := filepath.Join(w.folder, p.Name+".ndjson.zst")
	filter := events.Filter{Since: p.From.Time, Until: p.To.Time}
	words := map[string]string{"partition": p.Name}
	_, err = archive.ToFile(ctx, archive.Exporting{Pool: w.Pool, Filter: filter, Compression: archive.CompressionOf(path)}, path, words, true)
	if err != nil && !errors.Is(err, archive.ErrExists) {
		if ctx.Err() != nil {
			return "", err
		}
		return fmt.Sprintf("it cannot be exported: %v", err), nil
	}
	if err := w.at("verify"); err != nil {
		return "", err
	}
	n, err := archive.Verify(ctx, w.Pool, path, &filter, p.hi-1)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return fmt.Sprintf("its export cannot be trusted: %v; delete the file, it is made again", err), nil
	}
	note, err := json.Marshal(map[string]any{"file": path, "events": n})
	if err == nil {
		_, err = w.Pool.Exec(ctx, exportedSQL, p.Name, note)
	}
	if err != nil {
		return "", fmt.Errorf("note that %s is exported: %w", p.Name, err)
	}
	w.log.Info("partition exported", "partition", p.Name, "file", path, "events", n)
	return "", nil
}
