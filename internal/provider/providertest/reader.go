package providertest

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// apiKey is not the key of any provider, and long enough to be masked.
const apiKey = "NoKeyOfAnybody-S3cret"

// testReader checks a provider whose API can be read; it does nothing for others.
func testReader(t *testing.T, s Suite) {
	t.Helper()
	reader, ok := s.Provider.(provider.Reader)
	if !ok {
		return
	}
	api := &provider.API{Key: provider.Secret{Name: "api.key", Value: []byte(apiKey)}}
	if err := reader.CompleteAPI(api); err != nil {
		t.Fatal(err)
	}
	if withBaseURL, ok := reader.(provider.BaseURLReader); ok {
		if err := withBaseURL.SetBaseURL(s.Source, api); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.HasPrefix(api.BaseURL, "https://") || strings.HasSuffix(api.BaseURL, "/") || api.Rate < 1 ||
		api.Concurrency < 1 {
		t.Errorf("from a key alone CompleteAPI makes %+v", api)
	}
	h := http.Header{}
	if reader.Authorize(api, h); !containsKey(provider.Call{Header: h}) {
		t.Error("Authorize sets no header with the key")
	}
	calls := []provider.Call{reader.CredentialCheck(api, s.Source.Account)}
	if of, ok := reader.(provider.ObjectCredentialChecker); ok {
		calls = append(calls, of.ObjectCredentialCheck(s.Source, api, s.Source.Account, "order", "1"))
	}
	if lister, ok := reader.(provider.EventLister); ok {
		calls = append(calls, lister.ListEvents(api, s.Source.Account, now.Add(-time.Hour), now, ""))
	}
	for _, call := range calls {
		if !strings.HasPrefix(call.Path, "/") || containsKey(call) {
			t.Errorf("a call has no path, or contains the key before Authorize: %+v", call)
		}
	}
	testClassification(t, reader)
}

// testClassification checks that Found has a 2xx status and Missing a 404 or 410, and that no
// detail contains the key.
func testClassification(t *testing.T, reader provider.Reader) {
	t.Helper()
	for status := range 600 {
		for _, body := range []string{"", "{}", "null", "[1]", "<html>", `{"error": "` + apiKey + `"}`,
			`{"error": {"code": "` + apiKey + `", "message": "` + apiKey + `"}}`} {
			v := reader.Answer(status, http.Header{"Retry-After": {"3"}}, []byte(body))
			if v.Kind == provider.Found && (status < 200 || status > 299) || v.Kind == provider.Missing &&
				status != http.StatusNotFound && status != http.StatusGone {
				t.Fatalf("%d %s: %+v", status, body, v)
			}
			if v.Kind == provider.Throttled && v.Wait <= 0 || v.Wait < 0 {
				t.Fatalf("%d %s: %+v: the wait is missing", status, body, v)
			}
			if (v.Detail == "") != (v.Kind == provider.Found) || strings.Contains(v.Detail, apiKey) {
				t.Fatalf("%d %s: %+v: the detail is missing, or contains the key", status, body, v)
			}
		}
	}
}

// containsKey reports whether a call contains the key.
func containsKey(c provider.Call) bool {
	var head bytes.Buffer
	_ = c.Header.Write(&head) // a buffer never fails
	return strings.Contains(head.String()+c.Path+c.Query.Encode()+string(c.Body), apiKey)
}
