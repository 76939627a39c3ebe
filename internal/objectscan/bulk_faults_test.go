package objectscan_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
)

// A file with another size than the API has reported fails the run with a description.
func TestObjectScan_bulkFileSizeDiffers_failsTheRun(t *testing.T) {
	t.Parallel()
	for _, longer := range []bool{true, false} {
		t.Run(fmt.Sprint(longer), func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewShopifyEnv(t, shopifyfake.Options{Seed: 3}, reconciled.ObjectSet{Name: "product", N: 20})
			cut := 0
			over := reconciled.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Range", fmt.Sprint("bytes */", cut))
				w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			})
			startWithDownload(t, b, func(ctx context.Context, c providerapi.Caller, address string,
				offset int64) (io.ReadCloser, error) {
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
					return io.NopCloser(strings.NewReader(string(text) +
						`{"id":"gid://shopify/Product/990001","updatedAt":"2026-01-01T00:00:00Z"}` + "\n")), err
				}
				return io.NopCloser(bytes.NewReader(text[:cut])), err
			})
			r := b.WaitForRun(t, startScan(t, b, "product"), func(r *runs.Run) bool {
				return r.Status.Ended() || r.ConsecutiveFailures > 3
			})
			says := map[bool]string{true: "the file has more bytes, and the API announced ",
				false: fmt.Sprintf("the file has %d bytes, and the API announced ", cut)}[longer]
			if r.Status != runs.Failed || !strings.Contains(r.Detail, says) || r.Counts[objectscan.Orphans] != 0 {
				t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
			}
			b.WantRows(t, `SELECT count(*)::text FROM watermarks`, "0")
		})
	}
}

// An expired download address is requested again once, and the download continues. If the new
// address fails too, the list is read again.
func TestObjectScan_expiredBulkAddress_isRequestedAgain(t *testing.T) {
	t.Parallel()
	for _, rejected := range []int{1, 1000} {
		t.Run(fmt.Sprint(rejected), func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewShopifyEnv(t, shopifyfake.Options{Seed: 3}, reconciled.ObjectSet{Name: "product", N: 20})
			left := rejected
			proxy := reconciled.Serve(t,
				func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
			startWithDownload(t, b, func(ctx context.Context, c providerapi.Caller, address string,
				offset int64) (io.ReadCloser, error) {
				if left > 0 {
					left--
					return c.Download(ctx, "", proxy, offset)
				}
				return c.Download(ctx, "", address, offset)
			})
			r := b.WaitForEnd(t, startScan(t, b, "product"))
			restarts := b.DB.QueryStrings(t, `SELECT restarts::text FROM object_scans`)[0]
			if rejected == 1 && (r.Status != runs.Done || restarts != "0") {
				t.Errorf("%s after %s restarts: %s", r.Status, restarts, r.Detail)
			}
			if rejected > 1 && (r.Status != runs.Failed || restarts != "5" || rejected-left != 12 ||
				!strings.Contains(r.Detail, "let the processor reach 127.0.0.1")) {
				t.Errorf("%s after %s restarts and %d downloads: %s", r.Status, restarts, rejected-left, r.Detail)
			}
		})
	}
}

// downloadFunc downloads a file through a Caller.
type downloadFunc func(ctx context.Context, c providerapi.Caller, address string, offset int64) (io.ReadCloser, error)

// downloadCaller is a Caller with another download function.
type downloadCaller struct {
	providerapi.Caller
	download downloadFunc
}

func (d downloadCaller) Download(ctx context.Context, _, address string, offset int64) (io.ReadCloser, error) {
	return d.download(ctx, d.Caller, address, offset)
}

// startWithDownload starts a runner with a download function.
func startWithDownload(t *testing.T, b *reconciled.ShopifyEnv, download downloadFunc) {
	t.Helper()
	r := b.Runner(t)
	source := *r.Sources.All()[b.Source]
	source.Caller = downloadCaller{source.Caller, download}
	r.Sources.Replace(&source)
	b.StartReconciler(t, r)
}
