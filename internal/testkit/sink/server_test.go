package sink_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/smtp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// testServer is the URL of a Server.
type testServer string

func setup(t *testing.T, ignores ...string) testServer {
	t.Helper()
	server := httptest.NewServer(&sink.Server{IgnoresKeys: ignores})
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return testServer(server.URL)
}

// request returns the status and the body of the response. Status 0 means that the connection
// ended.
func (d testServer) request(ctx context.Context, method, path, key, body string) (status int, answer string) {
	// a body without a length, so that the transport does not send it twice
	req, err := http.NewRequestWithContext(ctx, method, string(d)+path, io.NopCloser(strings.NewReader(body)))
	if err != nil {
		return 0, err.Error()
	}
	req.Header.Set("Idempotency-Key", key)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, ""
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, strings.TrimSpace(string(text))
}

func (d testServer) planFault(t *testing.T, query string) {
	t.Helper()
	if status, answer := d.request(t.Context(), http.MethodPost, "/-/faults?"+query, "", ""); status != http.StatusOK {
		t.Fatalf("%s: %d %s", query, status, answer)
	}
}

func (d testServer) actions(t *testing.T) string {
	t.Helper()
	_, did := d.request(t.Context(), http.MethodGet, "/-/did", "", "")
	return did
}

// Each planned fault produces its response and its action, or none. A hanging request hangs as long
// as the caller waits.
func TestServer_plannedFault_endsTheRequestAsNamed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fault  string
		status int
		did    string
	}{
		{"refuses", 429, ""},
		{"fails", 500, ""},
		{"drops", 0, ""},
		{"hangs", 0, ""},
		{"acts_fails", 500, "1 /mail/messages one"},
		{"acts_drops", 0, "1 /mail/messages one"},
		{"acts_hangs", 0, "1 /mail/messages one"},
		{"late", 200, "1 /mail/messages one"},
	} {
		t.Run(c.fault, func(t *testing.T) {
			t.Parallel()
			d := setup(t)
			d.planFault(t, "path=/mail&body=one&fault="+c.fault)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			answered := make(chan int, 1)
			go func() {
				status, _ := d.request(ctx, http.MethodPost, "/mail/messages", "k1", "one")
				answered <- status
			}()
			if strings.HasSuffix(c.fault, "hangs") {
				testkit.Eventually(t, time.Minute, func() error {
					if _, n := d.request(t.Context(), http.MethodGet, "/-/hanging", "", ""); n != "1" {
						return fmt.Errorf("%s requests hang", n)
					}
					return nil
				})
				stop()
			}
			if status := <-answered; status != c.status {
				t.Errorf("status %d, want %d", status, c.status)
			}
			if diff := cmp.Diff(c.did, d.actions(t)); diff != "" {
				t.Errorf("actions (-want +got):\n%s", diff)
			}
			if status, _ := d.request(t.Context(), http.MethodPost, "/mail/messages", "k2",
				"one"); status != http.StatusOK {
				t.Errorf("the next request has the status %d", status)
			}
		})
	}
}

// A sink executes a repeated key once, unless it ignores keys. Each sink has its own keys. PUT
// requests to one path are one action.
func TestServer_repeatedKey_actsOnceUnlessIgnored(t *testing.T) {
	t.Parallel()
	d := setup(t, "mail")
	for _, key := range []string{"k2", "k3"} {
		for _, path := range []string{"/mail/messages", "/store/orders"} {
			if status, answer := d.request(t.Context(), http.MethodPost, path, "k1", "a"); status != http.StatusOK ||
				!strings.Contains(answer, `"id"`) {
				t.Errorf("%s: %d %s", path, status, answer)
			}
		}
		d.request(t.Context(), http.MethodPut, "/accounting/customers/7", key, "c")
	}
	got := strings.Split(d.actions(t), "\n")
	if diff := cmp.Diff(map[string]bool{"2 /mail/messages a": true, "1 /store/orders a": true,
		"1 /accounting/customers/7 c": true}, set(got)); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
	if status, _ := d.request(t.Context(), http.MethodPost, "/-/faults?fault=nap", "",
		""); status != http.StatusBadRequest {
		t.Errorf("an unknown fault has the status %d", status)
	}
}

// The mail server takes one fault of the path /smtp for each mail, and lists the accepted mails.
func TestServer_mailFaults_acceptOrDropTheMail(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	played := &sink.Server{}
	server := httptest.NewServer(played)
	ended := make(chan error, 1)
	go func() { ended <- played.ServeMail(l) }()
	t.Cleanup(func() {
		l.Close()
		<-ended
		server.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	d := testServer(server.URL)
	mail := func(n int) error {
		return smtp.SendMail(l.Addr().String(), nil, "a@example.com", []string{"b@example.com"}, fmt.Appendf(nil,
			"Message-ID: <m%d@example.com>\r\nSubject: =?utf-8?q?Gr=C3=BC=C3=9Fe?= %d\r\n\r\nhello\r\n", n, n))
	}
	for n, c := range []struct {
		fault string
		fails bool
		taken int
	}{{"late", false, 1}, {"refuses", true, 0}, {"fails", true, 0}, {"drops", true, 0}, {"acts_drops", true, 1}} {
		d.planFault(t, "path=/smtp&fault="+c.fault)
		// the server does not answer QUIT
		if err := mail(n); c.fails && err == nil || !c.fails && err != nil && !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v", c.fault, err)
		}
		_, told := d.request(t.Context(), http.MethodGet, fmt.Sprintf("/smtp/messages?id=m%d@example.com", n), "", "")
		if got := strings.Count(told, "<m"+strconv.Itoa(n)) +
			strings.Count(told, "\\u003cm"+strconv.Itoa(n)); got != c.taken {
			t.Errorf("%s: the mails are %s, want %d", c.fault, told, c.taken)
		}
	}
	if diff := cmp.Diff("1 /smtp b@example.com Grüße 0\n1 /smtp b@example.com Grüße 4", d.actions(t)); diff != "" {
		t.Errorf("actions (-want +got):\n%s", diff)
	}
}

func set(lines []string) map[string]bool {
	all := map[string]bool{}
	for _, l := range lines {
		all[l] = true
	}
	return all
}

// A search lists the actions of a path whose body has the values of the query. It hangs if planned.
func TestServer_search_listsMatchingActions(t *testing.T) {
	t.Parallel()
	d := setup(t)
	for n, body := range []string{`{"email": "a@x.example"}`, `{"email": "b@x.example"}`} {
		d.request(t.Context(), http.MethodPost, "/accounting/customers", fmt.Sprint("key", n), body)
	}
	for query, want := range map[string]string{
		"email=b@x.example": `{"data":[{"email":"b@x.example","id":"accounting/customers_2"}]}`,
		"email=c@x.example": `{"data":[]}`} {
		if status, got := d.request(t.Context(), http.MethodGet, "/accounting/customers?"+query, "",
			""); status != http.StatusOK || got != want {
			t.Errorf("%s: %d %s, want %s", query, status, got, want)
		}
	}
	d.planFault(t, "fault=hangs&path=/accounting&body=email%3Da")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if status, got := d.request(ctx, http.MethodGet, "/accounting/customers?email=a@x.example", "", ""); status != 0 {
		t.Errorf("a planned fault of a search: %d %s", status, got)
	}
}
