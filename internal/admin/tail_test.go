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
	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/testkit"
)

// streamServer serves the API with short time limits, which streams and requests that wait must
// outlive.
func (b *testBundle) streamServer(t *testing.T, o admin.Options) *httptest.Server {
	t.Helper()
	o.Pool, o.Logger = b.role(t, "operator"), testkit.Logger(t)
	o.Changes = changes.NewReader(o.Pool, o.Logger)
	o.Follower = &operations.Follower{Pool: o.Pool, Logger: o.Logger, Interval: 20 * time.Millisecond}
	s := httptest.NewUnstartedServer(admin.New(o))
	s.Config.ReadTimeout, s.Config.WriteTimeout = 500*time.Millisecond, 500*time.Millisecond
	s.Config.RegisterOnShutdown(o.Changes.Close)
	s.Config.RegisterOnShutdown(o.Follower.Close)
	s.Start()
	t.Cleanup(s.Close)
	t.Cleanup(o.Changes.Close)
	t.Cleanup(o.Follower.Close)
	return s
}

// openStream sends a request to a path below /api/v1, whose response ends with the test.
func openStream(t *testing.T, s *httptest.Server, path string, header http.Header) (*http.Response, *bufio.Scanner) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/api/v1"+path, nil)
	testkit.Must(t, err)
	if header != nil {
		req.Header = header
	}
	res, err := http.DefaultClient.Do(req)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = res.Body.Close() })
	return res, bufio.NewScanner(res.Body)
}

// readLines reads lines until one has a prefix, and returns them.
func readLines(t *testing.T, lines *bufio.Scanner, prefix string) (all []string) {
	t.Helper()
	for lines.Scan() {
		if all = append(all, lines.Text()); strings.HasPrefix(lines.Text(), prefix) {
			return all
		}
	}
	t.Fatalf("the stream ended after %q: %v", all, lines.Err())
	return nil
}

// readMessage reads the next message with data.
func readMessage(t *testing.T, lines *bufio.Scanner) (id, data string) {
	t.Helper()
	all := readLines(t, lines, "data: ")
	return strings.TrimPrefix(all[len(all)-2], "id: "), strings.TrimPrefix(all[len(all)-1], "data: ")
}

func TestTail_stream_outlivesTimeoutsAndContinues(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.append(t, "shop", "k0")
	s := b.streamServer(t, admin.Options{})
	began := time.Now()
	res, lines := openStream(t, s, fmt.Sprint("/events/tail?source=shop&after=", first), nil)
	if kind := res.Header.Get("Content-Type"); res.StatusCode != 200 || kind != "text/event-stream" {
		t.Fatalf("%s %s", res.Status, kind)
	}
	var last int64
	for i := 0; time.Since(began) < 2*time.Second; i++ {
		last = b.append(t, "shop", fmt.Sprint("k", i+1))
		if id, data := readMessage(t, lines); id != fmt.Sprint(last) ||
			!strings.Contains(data, fmt.Sprintf(`"event_id":"k%d"`, i+1)) {
			t.Fatalf("event %d: %s %s", last, id, data)
		}
	}
	b.append(t, "shop", "resumed")
	_, resumed := openStream(t, s, "/events/tail?source=shop", http.Header{"Last-Event-Id": {fmt.Sprint(last)}})
	if id, data := readMessage(t, resumed); !strings.Contains(data, `"event_id":"resumed"`) {
		t.Errorf("after %d: %s %s", last, id, data)
	}
}

func TestTail_wrongRequests_areProblems(t *testing.T) {
	t.Parallel()
	s := setup(t).streamServer(t, admin.Options{})
	for query, want := range map[string]string{"?cursor=x": "cursor", "?limit=1": "limit", "?source=none": "none",
		"?after=x": "not a number", "?after=1": "is older than"} {
		res, lines := openStream(t, s, "/events/tail"+query, nil)
		if text := readLines(t, lines, "{"); res.StatusCode != 400 || !strings.Contains(text[0], want) {
			t.Errorf("%s: %s %s", query, res.Status, text)
		}
	}
	res, _ := openStream(t, s, "/events/tail", http.Header{"Last-Event-Id": {"x"}})
	if res.StatusCode != 400 {
		t.Errorf("a wrong Last-Event-ID: %s", res.Status)
	}
	for range 50 {
		if res, _ := openStream(t, s, "/events/tail", nil); res.StatusCode != 200 {
			t.Fatal(res.Status)
		}
	}
	if res, lines := openStream(t, s, "/events/tail", nil); res.StatusCode != 503 ||
		!strings.Contains(readLines(t, lines, "{")[0], "50 watchers") {
		t.Errorf("51 watchers: %s", res.Status)
	}
}

// Streams and a request that waits end soon after their token was revoked.
func TestStreams_revokedToken_endsThem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, token, _ := b.guarded(t, admin.Options{RequireTokens: true})
	s := b.streamServer(t, admin.Options{RequireTokens: true,
		Tokens: &adminauth.TokenCache{DB: b.role(t, "operator")}})
	var streams []*bufio.Scanner
	for _, path := range []string{"/events/tail", "/changes"} {
		if res, _ := openStream(t, s, path, nil); res.StatusCode != 401 {
			t.Errorf("%s without a token: %s", path, res.Status)
		}
		res, lines := openStream(t, s, path, http.Header{"Authorization": {"Bearer " + token},
			"Accept": {"text/event-stream"}})
		if res.StatusCode != 200 {
			t.Fatalf("%s: %s", path, res.Status)
		}
		streams = append(streams, lines)
	}
	wait := waited(t, s, "wait=60s", http.Header{"Authorization": {"Bearer " + token}})
	readLines(t, streams[0], ": following")
	b.db.Exec(t, `UPDATE tokens SET revoked_at = now()`)
	for _, lines := range streams {
		for lines.Scan() { // ends within 10 s
		}
	}
	if l := <-wait; !strings.HasPrefix(l.Next, "401") {
		t.Errorf("a request that waited: %+v", l)
	}
}

// Streams and a request that waits end with the process.
func TestStreams_shutdown_endsThem(t *testing.T) {
	t.Parallel()
	s := setup(t).streamServer(t, admin.Options{})
	_, tail := openStream(t, s, "/events/tail", nil)
	_, feed := openStream(t, s, "/changes", http.Header{"Accept": {"text/event-stream"}})
	wait := waited(t, s, "wait=60s", nil)
	readLines(t, tail, ": following")
	readLines(t, feed, "id: ")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	testkit.Must(t, s.Config.Shutdown(ctx))
	for _, lines := range []*bufio.Scanner{tail, feed} {
		for lines.Scan() { // ends, because the server has closed the stream
		}
	}
	if l := <-wait; strings.HasPrefix(l.Next, "5") || len(l.Items) != 0 {
		t.Errorf("a request that waited: %+v", l)
	}
}

// checkStream compares a stream with the document, and returns the id of the operation.
func (b *testBundle) checkStream(t *testing.T) string {
	t.Helper()
	d, err := loadDescription()
	testkit.Must(t, err)
	first := b.append(t, "shop", "before")
	b.append(t, "shop", "streamed")
	res, lines := openStream(t, b.streamServer(t, admin.Options{}), fmt.Sprint("/events/tail?after=", first), nil)
	_, data := readMessage(t, lines)
	operation := d.document.Paths.Value("/api/v1/events/tail").Get
	if kind := res.Header.Get("Content-Type"); operation.Responses.Status(200).Value.Content.Get(kind) == nil {
		t.Errorf("the document does not describe a stream of type %q", kind)
	}
	schema, err := d.schemas.Compile(documentURL + "#/paths/~1api~1v1~1events~1tail/get/responses/200/content/" +
		"text~1event-stream/x-message-schema")
	testkit.Must(t, err)
	message, err := jsonschema.UnmarshalJSON(strings.NewReader(data))
	testkit.Must(t, err)
	testkit.Must(t, schema.Validate(message))
	return operation.OperationID
}
