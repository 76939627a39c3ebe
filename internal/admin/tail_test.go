package admin_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/testkit"
)

// tailServer serves the API with short time limits, which a stream must outlive.
func (b *testBundle) tailServer(t *testing.T, o admin.Options) (*httptest.Server, *operations.Follower) {
	t.Helper()
	o.Pool, o.Logger = b.role(t, "operator"), testkit.Logger(t)
	o.Follower = &operations.Follower{Pool: o.Pool, Logger: o.Logger, Interval: 20 * time.Millisecond}
	s := httptest.NewUnstartedServer(admin.New(o))
	s.Config.ReadTimeout, s.Config.WriteTimeout = 500*time.Millisecond, 500*time.Millisecond
	s.Config.RegisterOnShutdown(o.Follower.Close)
	s.Start()
	t.Cleanup(s.Close)
	t.Cleanup(o.Follower.Close)
	return s, o.Follower
}

// openTail opens a stream, which ends with the test.
func openTail(t *testing.T, url, query string, header http.Header) (*http.Response, *bufio.Scanner) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/api/v1/events/tail"+query, nil)
	must(t, err)
	if header != nil {
		req.Header = header
	}
	res, err := http.DefaultClient.Do(req)
	must(t, err)
	t.Cleanup(func() { _ = res.Body.Close() })
	return res, bufio.NewScanner(res.Body)
}

// readTail reads lines until one has a prefix, and returns them.
func readTail(t *testing.T, lines *bufio.Scanner, prefix string) (all []string) {
	t.Helper()
	for lines.Scan() {
		if all = append(all, lines.Text()); strings.HasPrefix(lines.Text(), prefix) {
			return all
		}
	}
	t.Fatalf("the stream ended after %q: %v", all, lines.Err())
	return nil
}

func TestTail_stream_outlivesTimeoutsAndEndsAtShutdown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.append(t, "shop", "k0")
	s, _ := b.tailServer(t, admin.Options{})
	began := time.Now()
	res, lines := openTail(t, s.URL, fmt.Sprint("?source=shop&after=", first), nil)
	if kind := res.Header.Get("Content-Type"); res.StatusCode != 200 || kind != "text/event-stream" {
		t.Fatalf("%s %s", res.Status, kind)
	}
	var last int64
	for i := 0; time.Since(began) < 2*time.Second; i++ {
		last = b.append(t, "shop", fmt.Sprint("k", i+1))
		all := readTail(t, lines, "data: ")
		if id := all[len(all)-2]; id != fmt.Sprint("id: ", last) ||
			!strings.Contains(all[len(all)-1], fmt.Sprintf(`"event_id":"k%d"`, i+1)) {
			t.Fatalf("event %d: %q", last, all)
		}
	}
	b.append(t, "shop", "resumed")
	_, resumed := openTail(t, s.URL, "?source=shop", http.Header{"Last-Event-Id": {fmt.Sprint(last)}})
	if all := readTail(t, resumed, "data: "); !strings.Contains(all[len(all)-1], `"event_id":"resumed"`) {
		t.Errorf("after %d: %q", last, all)
	}
	shutdown, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, s.Config.Shutdown(shutdown))
	for lines.Scan() { // ends, because the server has closed the stream
	}
}

func TestTail_wrongRequests_areProblems(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, follower := b.tailServer(t, admin.Options{})
	for query, want := range map[string]string{"?cursor=x": "cursor", "?limit=1": "limit", "?source=none": "none",
		"?after=x": "not a number", "?after=1": "is older than"} {
		res, lines := openTail(t, s.URL, query, nil)
		if text := readTail(t, lines, "{"); res.StatusCode != 400 || !strings.Contains(text[0], want) {
			t.Errorf("%s: %s %s", query, res.Status, text)
		}
	}
	res, _ := openTail(t, s.URL, "", http.Header{"Last-Event-Id": {"x"}})
	if res.StatusCode != 400 {
		t.Errorf("a wrong Last-Event-ID: %s", res.Status)
	}
	for range 50 {
		if res, _ := openTail(t, s.URL, "", nil); res.StatusCode != 200 {
			t.Fatal(res.Status)
		}
	}
	if res, lines := openTail(t, s.URL, "", nil); res.StatusCode != 503 ||
		!strings.Contains(readTail(t, lines, "{")[0], "50 watchers") {
		t.Errorf("51 watchers: %s", res.Status)
	}
	follower.Close()
}

// A stream ends soon after its token was revoked.
func TestTail_revokedToken_endsStream(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, token, _ := b.guarded(t, admin.Options{RequireTokens: true})
	s, _ := b.tailServer(t, admin.Options{RequireTokens: true,
		Tokens: &adminauth.TokenCache{DB: b.role(t, "operator")}})
	if res, _ := openTail(t, s.URL, "", nil); res.StatusCode != 401 {
		t.Errorf("without a token: %s", res.Status)
	}
	res, lines := openTail(t, s.URL, "", http.Header{"Authorization": {"Bearer " + token}})
	if res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	readTail(t, lines, ": following")
	b.db.Exec(t, `UPDATE tokens SET revoked_at = now()`)
	for lines.Scan() { // ends within 10 s
	}
}

// checkStream compares a stream with the document, and returns the id of the operation.
func (b *testBundle) checkStream(t *testing.T) string {
	t.Helper()
	d, err := loadDescription()
	must(t, err)
	first := b.append(t, "shop", "before")
	b.append(t, "shop", "streamed")
	s, _ := b.tailServer(t, admin.Options{})
	res, lines := openTail(t, s.URL, fmt.Sprint("?after=", first), nil)
	all := readTail(t, lines, "data: ")
	operation := d.document.Paths.Value("/api/v1/events/tail").Get
	if kind := res.Header.Get("Content-Type"); operation.Responses.Status(200).Value.Content.Get(kind) == nil {
		t.Errorf("the document does not describe a stream of type %q", kind)
	}
	schema, err := d.schemas.Compile(documentURL + "#/paths/~1api~1v1~1events~1tail/get/responses/200/content/" +
		"text~1event-stream/x-message-schema")
	must(t, err)
	message, err := jsonschema.UnmarshalJSON(strings.NewReader(strings.TrimPrefix(all[len(all)-1], "data: ")))
	must(t, err)
	must(t, schema.Validate(message))
	return operation.OperationID
}
