package reconciled

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

const APIKey = "sk_test_s3cret"

// LockedBuffer is a buffer for the loggers of several clients.
type LockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *LockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

// Text returns everything that was written.
func (b *LockedBuffer) Text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.String()
}

// Count returns how often a text was written.
func (b *LockedBuffer) Count(text string) int { return strings.Count(b.Text(), text) }

// Serve starts the API of a provider.
func Serve(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}
