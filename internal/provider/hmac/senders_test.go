package hmac_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/signature"
)

// vector is a delivery as its sender makes it, signed by another program, with the expected event
// and observation.
type vector struct {
	About      string            `json:"about"`
	ReceivedAt time.Time         `json:"received_at"`
	Secret     string            `json:"secret"`
	Query      string            `json:"query"`
	Headers    map[string]string `json:"headers"`
	Body       string            `json:"body"`
	// Several means that there are more right signatures than necessary, so one of them may be
	// changed.
	Several bool           `json:"several"`
	Events  []eventSummary `json:"events"`
}

// eventSummary is an event and the summary of its observation. A * at the end of Key or Says stands
// for any text.
type eventSummary struct {
	Key     string `json:"key"`
	Type    string `json:"type"`
	Account string `json:"account"`
	Says    string `json:"says"`
}

var suiteTime = time.Date(2026, time.July, 4, 12, 30, 15, 0, time.UTC)

// names are the senders of testdata.
func names(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/senders/*.yaml")
	if err != nil || len(files) < 90 {
		t.Fatalf("%d senders, %v", len(files), err)
	}
	var out []string
	for _, file := range files {
		out = append(out, strings.TrimSuffix(filepath.Base(file), ".yaml"))
	}
	return out
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// setup loads a sender's configuration with a secret.
func setup(t *testing.T, name, secret string) config.Endpoint {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "senders", name+".yaml"))
	must(t, err)
	configured := secret
	// the secret of a published vector may be shorter than a configuration allows
	if len(secret) < signature.MinSecret {
		configured = "a longer secret"
	}
	c, err := config.Parse(append([]byte("database: {url: postgres://x}\n"), text...), func(variable string) string {
		switch {
		case strings.HasSuffix(variable, "_SECRET"):
			return configured
		case strings.HasSuffix(variable, "_VERIFY_TOKEN"):
			return "a token of ours"
		}
		return ""
	})
	must(t, err)
	e := c.Endpoints()[0]
	e.Source.Secrets[0].Value = []byte(secret)
	return e
}

func vectors(t *testing.T, name string) []vector {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "vectors", name+".json"))
	must(t, err)
	var out []vector
	if err := json.Unmarshal(text, &out); err != nil || len(out) == 0 {
		t.Fatalf("%s: %d vectors, %v", name, len(out), err)
	}
	return out
}

func (v vector) delivery() *provider.Delivery {
	d := &provider.Delivery{Header: http.Header{}, Query: v.Query, Body: []byte(v.Body), ReceivedAt: v.ReceivedAt}
	for name, value := range v.Headers {
		d.Header.Set(name, value)
	}
	return d
}

// Every sender's configuration accepts the sender's deliveries and reads them as expected. It
// rejects everything else.
func TestSenders_vectors_areReadAsRecorded(t *testing.T) {
	t.Parallel()
	for _, name := range names(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i, v := range vectors(t, name) {
				e := setup(t, name, v.Secret)
				if _, err := e.Provider.Verify(e.Source, v.delivery()); err != nil {
					t.Fatalf("vector %d: %v", i, err)
				}
				v.read(t, e)
				v.forge(t, name, e)
				providertest.CheckSound(t, e.Provider, e.Source, v.delivery())
			}
		})
	}
}

// read compares the result with the expectation.
func (v vector) read(t *testing.T, e config.Endpoint) {
	t.Helper()
	d := v.delivery()
	events, err := e.Provider.Identify(e.Source, d)
	must(t, err)
	var got []eventSummary
	for i, ev := range events {
		says := providertest.Summary(e.Provider.Observe(e.Source, &provider.StoredEvent{Key: ev.Key, Type: ev.Type,
			Account: ev.Account, ReceivedAt: d.ReceivedAt, Index: i, Body: d.Body}))
		got = append(got, eventSummary{ev.Key, ev.Type, ev.Account, says})
	}
	like := func(want, got string) bool {
		stem, open := strings.CutSuffix(want, "*")
		return want == got || open && strings.HasPrefix(got, stem)
	}
	same := func(want, got eventSummary) bool {
		return want.Type == got.Type && want.Account == got.Account && like(want.Key, got.Key) &&
			like(want.Says, got.Says)
	}
	if !slices.EqualFunc(v.Events, got, same) {
		t.Errorf("unexpected result:\n%s", cmp.Diff(v.Events, got))
	}
}

// forge changes the signed parts of a delivery, which must then be rejected.
func (v vector) forge(t *testing.T, name string, e config.Endpoint) {
	t.Helper()
	checkRejected := func(e config.Endpoint, d *provider.Delivery, what string, reasons ...provider.Reason) {
		t.Helper()
		_, err := e.Provider.Verify(e.Source, d)
		var rejection *provider.Rejection
		if !errors.As(err, &rejection) || len(reasons) > 0 && !slices.Contains(reasons, rejection.Reason) {
			t.Errorf("%s: %v, want it rejected for %v", what, err, reasons)
		}
	}
	scheme := e.Provider.(*declared.Provider).Schemes()[0]
	checkRejected(setup(t, name, other(v.Secret)), v.delivery(), "another secret", provider.WrongSignature)
	if scheme.Message.String() != "" && signs(scheme, signature.Body) {
		for i := range v.Body {
			d := v.delivery()
			d.Body[i] ^= 1
			checkRejected(e, d, "a changed byte of the body")
		}
	}
	for header, value := range v.Headers {
		if v.Several || !signs(scheme, signature.Header, http.CanonicalHeaderKey(header)) {
			continue
		}
		for i := range value {
			d := v.delivery()
			changed := []byte(value)
			changed[i] ^= 1
			d.Header[http.CanonicalHeaderKey(header)] = []string{string(changed)}
			checkRejected(e, d, "a changed byte of "+header+" ("+string(changed)+")")
		}
		d := v.delivery()
		d.Header.Del(header)
		checkRejected(e, d, "without "+header)
	}
	if scheme.Timestamp == nil || scheme.Timestamp.Unchecked {
		return
	}
	tolerance := max(e.Source.Tolerance,
		provider.DefaultTolerance*time.Duration(map[bool]int{true: 1}[e.Source.Tolerance == 0])) + 5*time.Second
	d := v.delivery()
	d.ReceivedAt = d.ReceivedAt.Add(tolerance)
	checkRejected(e, d, "too late", provider.StaleTimestamp)
	d.ReceivedAt = v.ReceivedAt.Add(-tolerance)
	checkRejected(e, d, "too early", provider.FutureTimestamp)
}

// signs reports whether a scheme reads a value: as the signature, as the time, or as part of the
// signed message.
func signs(s *signature.Scheme, kind signature.Kind, name ...string) bool {
	refs := slices.Concat(s.Message.Refs(), s.Signature.In)
	if s.Timestamp != nil {
		refs = append(refs, s.Timestamp.From)
	}
	return slices.ContainsFunc(refs, func(r signature.Ref) bool {
		stem, many := strings.CutSuffix(r.Name, "#")
		return r.Kind == kind && (len(name) == 0 || r.Name == name[0] || many && strings.HasPrefix(name[0], stem))
	})
}

// other returns another secret of the same format.
func other(secret string) string {
	b := []byte(secret)
	for i := len(b) / 2; ; i-- {
		switch c := b[i]; {
		case c >= 'a' && c < 'f', c >= 'A' && c < 'F', c >= '0' && c < '9', c >= 'g' && c < 'z', c >= 'G' && c < 'Z':
			b[i]++
			return string(b)
		}
	}
}

// A user's body is signed as configured, and gives several events of one object.
func TestSenders_userBody_isSignedAndVaried(t *testing.T) {
	t.Parallel()
	for _, name := range names(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := vectors(t, name)
			v := all[len(all)-1]
			e := setup(t, name, v.Secret)
			keys, named := map[string]bool{}, false
			for n := range 3 {
				sample, err := e.Provider.MakeVariant(provider.Sample{Type: "some.type", Body: []byte(v.Body)}, n,
					suiteTime.Add(time.Duration(n)*time.Second), false)
				must(t, err)
				d, err := e.Provider.Sign(e.Source, sample, suiteTime.Add(time.Duration(n)*time.Second))
				must(t, err)
				if _, err := e.Provider.Verify(e.Source, d); err != nil {
					t.Errorf("verify the signed delivery: %v", err)
				}
				events, err := e.Provider.Identify(e.Source, d)
				must(t, err)
				keys[events[0].Key] = true
				named = !events[0].ContentKey
			}
			if named && len(keys) != 3 && !slices.Contains(alike, name) {
				t.Errorf("three events have %d keys: %v", len(keys), keys)
			}
		})
	}
}

// alike are senders whose events are identified by their content and the list that contains them,
// which MakeVariant does not change.
var alike = []string{"meta", "quickbooks"}
