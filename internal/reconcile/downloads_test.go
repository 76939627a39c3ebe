package reconcile_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// A server that answers the whole file in the place of its rest may take longer for what is passed over than it may be silent.
func TestWhatIsPassedOverComesSlowly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	c, _ := b.client(t, "http://127.0.0.1:1", func(o *provider.API) { o.Timeout = time.Second })
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
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
	if err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(body); err != nil || len(rest) != 1000 {
		t.Errorf("%d bytes are behind the offset, %v", len(rest), err)
	}
	_ = body.Close()
}

// downloading is a Caller whose downloads are another's.
type downloading struct {
	reconcile.Caller
	download func(ctx context.Context, c reconcile.Caller, address string, offset int64) (io.ReadCloser, error)
}

func (d downloading) Download(ctx context.Context, _, address string, offset int64) (io.ReadCloser, error) {
	return d.download(ctx, d.Caller, address, offset)
}

// downloads has runs download so.
func (b *bulkShop) downloads(t *testing.T, download func(ctx context.Context, c reconcile.Caller, address string, offset int64) (io.ReadCloser, error)) {
	t.Helper()
	r := b.runner(t)
	source := *r.Sources.All()[b.Source]
	source.Caller = downloading{source.Caller, download}
	r.Sources.Replace(&source)
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: r.Carry})
}

// A file that has not as many bytes as the API has told proves nothing, and says so.
func TestAFileOfAnotherSize(t *testing.T) {
	t.Parallel()
	for _, longer := range []bool{true, false} {
		t.Run(fmt.Sprint(longer), func(t *testing.T) {
			t.Parallel()
			b := newBulkShop(t, shopifyfake.Options{Seed: 3}, made{name: "product", n: 20})
			cut := 0
			over := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Range", fmt.Sprint("bytes */", cut))
				w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			})
			b.downloads(t, func(ctx context.Context, c reconcile.Caller, address string, offset int64) (io.ReadCloser, error) {
				if offset > 0 && !longer {
					return c.Download(ctx, "", over, offset)
				}
				body, err := c.Download(ctx, "", address, offset)
				if err != nil {
					return nil, err
				}
				defer func() { _ = body.Close() }()
				text, err := io.ReadAll(body)
				if cut = bytes.IndexByte(text, '\n') + 1; longer {
					return io.NopCloser(strings.NewReader(string(text) + `{"id":"gid://shopify/Product/990001","updatedAt":"2026-01-01T00:00:00Z"}` + "\n")), err
				}
				return io.NopCloser(bytes.NewReader(text[:cut])), err
			})
			r := b.Until(t, b.ask(t, "product"), func(r *runs.Run) bool { return r.Status.Final() || r.Troubles > 3 })
			says := map[bool]string{true: "the file has more bytes, and the API said ", false: fmt.Sprintf("the file has %d bytes, and the API said ", cut)}[longer]
			if r.Status != runs.Failed || !strings.Contains(r.Detail, says) || r.Counts[reconcile.Ghosts] != 0 {
				t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
			}
			if n := b.DB.Rows(t, `SELECT count(*)::text FROM watermarks`)[0]; n != "0" {
				t.Errorf("%s are proven", n)
			}
		})
	}
}

// An address that is not good any more is asked for once more, and the file is read on from where it was; only where the fresh one is no better the list is begun again.
func TestAFreshAddress(t *testing.T) {
	t.Parallel()
	for _, refused := range []int{1, 1000} {
		t.Run(fmt.Sprint(refused), func(t *testing.T) {
			t.Parallel()
			b := newBulkShop(t, shopifyfake.Options{Seed: 3}, made{name: "product", n: 20})
			left := refused
			proxy := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
			b.downloads(t, func(ctx context.Context, c reconcile.Caller, address string, offset int64) (io.ReadCloser, error) {
				if left > 0 {
					left--
					return c.Download(ctx, "", proxy, offset)
				}
				return c.Download(ctx, "", address, offset)
			})
			r := b.Until(t, b.ask(t, "product"), func(r *runs.Run) bool { return r.Status.Final() })
			restarts := b.DB.Rows(t, `SELECT restarts::text FROM sweeps`)[0]
			if refused == 1 && (r.Status != runs.Done || restarts != "0") {
				t.Errorf("%s after %s restarts: %s", r.Status, restarts, r.Detail)
			}
			if refused > 1 && (r.Status != runs.Failed || restarts != "5" || refused-left != 12 || !strings.Contains(r.Detail, "let the processor reach 127.0.0.1")) {
				t.Errorf("%s after %s restarts and %d downloads: %s", r.Status, restarts, refused-left, r.Detail)
			}
		})
	}
}
