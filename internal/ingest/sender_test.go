package ingest_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/testkit"
)

func networks(texts ...string) (out []netip.Prefix) {
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

// from asks a source as if from an address, through proxies that wrote so many X-Forwarded-For.
func from(h http.Handler, method, source, remote string, forwarded ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, "/webhooks/"+source+"?challenge=a", strings.NewReader("body"))
	req.RemoteAddr = remote
	for _, value := range forwarded {
		req.Header.Add("X-Forwarded-For", value)
	}
	req.Header.Set("Forwarded", "for=192.0.2.7")
	res := httptest.NewRecorder()
	h.ServeHTTP(res, req)
	return res
}

// Where a delivery comes from is who connects, and behind trusted proxies what the last of them saw; nothing that the sender wrote.
func TestAllowFromSeesTheSender(t *testing.T) {
	t.Parallel()
	b, log := allowing(t, networks("10.0.0.0/8", "127.0.0.1/32", "fe80::/10"))
	handler := b.server.Handler()
	for _, tc := range []struct {
		remote    string
		forwarded []string
		want      int
	}{
		{"192.0.2.7:1234", nil, 405},
		{"192.0.3.7:1234", nil, 403},
		{"[2001:db8::9]:1234", nil, 405},
		{"[2001:db9::9]:1234", nil, 403},
		{"[::ffff:192.0.2.7]:1234", nil, 405},
		{"[::ffff:192.0.3.7]:1234", nil, 403},
		{"[2001:db8::9%eth0]:1234", nil, 405},
		{"192.0.3.7:1234", []string{"192.0.2.7"}, 403}, // no proxy of ours
		{"10.1.2.3:1234", []string{"192.0.2.7"}, 405},
		{"[::ffff:10.1.2.3]:1234", []string{"192.0.2.7"}, 405},
		{"[fe80::1%eth0]:1234", []string{"192.0.2.7"}, 405},
		{"10.1.2.3:1234", []string{"192.0.2.7, 192.0.3.7"}, 403}, // the sender wrote the first
		{"10.1.2.3:1234", []string{"192.0.2.7", "192.0.3.7"}, 403},
		{"10.1.2.3:1234", []string{"192.0.3.7", "192.0.2.7"}, 405},
		{"10.1.2.3:1234", []string{"192.0.3.7, 192.0.2.7 ,10.0.0.1, 127.0.0.1"}, 405},
		{"10.1.2.3:1234", []string{"192.0.3.7,192.0.2.7", "10.0.0.1"}, 405},
		{"10.1.2.3:1234", []string{"192.0.2.7, unknown"}, 403},
		{"10.1.2.3:1234", []string{"192.0.2.7, "}, 403},
		{"10.1.2.3:1234", []string{"192.0.2.7:443"}, 405},
		{"10.1.2.3:1234", []string{"[2001:db8::7]:443"}, 405},
		{"10.1.2.3:1234", []string{"[2001:db8::7]"}, 405},
		{"10.1.2.3:1234", []string{"::ffff:192.0.2.7"}, 405},
		{"10.1.2.3:1234", nil, 403}, // the proxy itself, and Forwarded is not read
		{"127.0.0.1:1", []string{"10.0.0.1"}, 403},
		{"@", nil, 403},
		{"", []string{"192.0.2.7"}, 403},
	} {
		if got := from(handler, http.MethodGet, "stripe", tc.remote, tc.forwarded...).Code; got != tc.want {
			t.Errorf("from %q by way of %q: status %d, want %d", tc.remote, tc.forwarded, got, tc.want)
		}
	}
	for _, line := range log.take(t, "delivery") {
		if remote := fmt.Sprint(line["remote"]); line["result"] != "forbidden" && !strings.HasPrefix(remote, "192.0.2.") && !strings.HasPrefix(remote, "2001:db8::") {
			t.Errorf("the log names another sender: %v", line)
		}
	}
}

// allowing is a server whose sources stripe and polite take deliveries from few networks.
func allowing(t *testing.T, proxies []netip.Prefix) (*testBundle, *logged) {
	t.Helper()
	log, tune := logging(slog.LevelDebug) // what is told once in a while shows each time
	return setupIdle(t, testkit.Database(t), func(o *ingest.Options) {
		tune(o)
		o.TrustedProxies = proxies
		for _, name := range []string{"stripe", "polite"} {
			ep := o.Endpoints[name]
			ep.AllowFrom = networks("192.0.2.0/24", "2001:db8::/32")
			o.Endpoints[name] = ep
		}
	}), log
}

// Who is not allowed to send gets no challenge either, is counted, and is nowhere kept; the log tells the operator once what to do.
func TestSendersFromElsewhereAreRefused(t *testing.T) {
	t.Parallel()
	b, log := allowing(t, nil)
	handler := b.server.Handler()
	for range 20 {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
			res := from(handler, method, "polite", "198.51.100.1:5")
			if res.Code != http.StatusForbidden || strings.Contains(res.Body.String(), "polite a") {
				t.Fatalf("%s: %d %s", method, res.Code, res.Body)
			}
		}
	}
	if res := from(handler, http.MethodGet, "polite", "192.0.2.9:5"); res.Code != 200 {
		t.Errorf("an allowed one: %d %s", res.Code, res.Body)
	}
	if n := b.counter(t, "postern_deliveries_total", "source=polite", "result=forbidden"); n != 60 {
		t.Errorf("%v counted", n)
	}
	if n := b.counter(t, "postern_rejections_total"); n != 0 {
		t.Errorf("%v rejections", n)
	}
	told := log.take(t, "deliveries are refused that come from elsewhere than the source's allow_from; behind a proxy, ingest.trusted_proxies must name it")
	if len(told) != 1 || told[0]["remote"] != "198.51.100.1" || told[0]["source"] != "polite" {
		t.Errorf("the log says: %v", told)
	}
	// A body that nobody reads does not hold the answer up.
	a, conn := b.raw(t, "POST /webhooks/stripe HTTP/1.1\nHost: postern\nTransfer-Encoding: chunked", nil)
	a.refused(t, 403, "forbidden")
	closed(t, conn)
	_, _ = io.WriteString(conn, "5\r\nhello\r\n")
}
