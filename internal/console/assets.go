package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	filepath "path"
	"slices"
	"strings"
)

//go:embed assets/*.js assets/*.css assets/*.svg
var assetFiles embed.FS

// asset is a file that pages load.
type asset struct {
	mediaType  string
	plain      []byte
	compressed []byte
}

// assets serves the embedded files. The names that pages use contain a digest of the content, so
// browsers may keep the files for ever.
type assets struct {
	files map[string]asset
	// names are the names with digest, by the names in the folder.
	names map[string]string
}

// joined are files that pages load as one, under the name of the first.
var joined = []string{"htmx.js", "hx-csp.js", "hx-sse.js"}

// newAssets compresses each file once.
func newAssets() (*assets, error) {
	all := &assets{map[string]asset{}, map[string]string{}}
	entries, err := fs.ReadDir(assetFiles, "assets")
	if err != nil {
		return nil, fmt.Errorf("list the assets of the console: %w", err)
	}
	for _, f := range entries {
		parts := []string{f.Name()}
		switch slices.Index(joined, f.Name()) {
		case -1:
		case 0:
			parts = joined
		default:
			continue
		}
		content, err := readAssets(parts)
		if err != nil {
			return nil, err
		}
		var packed bytes.Buffer
		z, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression) // the level is valid
		_, _ = z.Write(content)                                    // a buffer never returns an error
		_ = z.Close()
		sum, ext := sha256.Sum256(content), filepath.Ext(f.Name())
		name := strings.TrimSuffix(f.Name(), ext) + "-" + hex.EncodeToString(sum[:6]) + ext
		all.names[f.Name()] = name
		all.files[name] = asset{mime.TypeByExtension(ext), content, packed.Bytes()}
	}
	return all, nil
}

// readAssets returns the contents of files, one after the other.
func readAssets(names []string) (content []byte, err error) {
	for _, name := range names {
		part, err := assetFiles.ReadFile("assets/" + name)
		if err != nil {
			return nil, fmt.Errorf("read asset %s: %w", name, err)
		}
		content = append(append(content, part...), '\n')
	}
	return content, nil
}

func (all *assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a, ok := all.files[r.PathValue("file")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", a.mediaType)
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	w.Header().Set("Vary", "Accept-Encoding")
	content := a.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		content = a.compressed
	}
	_, _ = w.Write(content) // the client may have disconnected
}
