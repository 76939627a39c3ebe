package providerapi_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
)

// Files are downloaded over https only, without the key and without following redirects.
func TestClient_download_onlyFromAllowedAddresses(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	c, _ := b.client(t, unusedURL, nil)
	remote, _ := b.client(t, "https://shop.example", nil)
	requested := 0
	url := reconciled.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		requested++
		if r.Header.Get("Authorization") != "" {
			t.Errorf("the key was sent to %s", r.Host)
		}
		switch r.URL.Path {
		case "/moved":
			http.Redirect(w, r, "/", http.StatusFound)
		case "/other":
			w.Header().Set("Content-Range", "bytes 0-9/10")
			w.WriteHeader(http.StatusPartialContent)
		case "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
		}
	})
	for _, address := range []string{"ftp://127.0.0.1/x", "http://files.example/x", "https://me@files.example/x",
		"https:///x", "://"} {
		if _, err := c.Download(t.Context(), "", address, 0); err == nil || !strings.Contains(err.Error(), "https") {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, err := remote.Download(t.Context(), "", url, 0); err == nil || requested != 0 {
		t.Errorf("an API over https has led to %d calls over http: %v", requested, err)
	}
	for path, want := range map[string]string{"/moved?signature=s3cret": "answered 302", "/other": "another part",
		"/gzip": "coding"} {
		if _, err := c.Download(t.Context(), "", url+path, 5); err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A server that ignores the range returns the whole file. Skipping the beginning may take longer
// than the timeout for silence.
func TestClient_slowSkippedBytes_doNotTimeOut(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	c, _ := b.client(t, unusedURL, func(o *provider.API) { o.Timeout = time.Second })
	url := reconciled.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		for range 40 {
			_, _ = w.Write(make([]byte, 1000))
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	body, err := c.Download(t.Context(), "", url, 39_000)
	testkit.Must(t, err)
	if rest, err := io.ReadAll(body); err != nil || len(rest) != 1000 {
		t.Errorf("%d bytes after the offset, %v", len(rest), err)
	}
	_ = body.Close()
}
