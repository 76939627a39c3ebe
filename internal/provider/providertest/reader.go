package providertest

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// apiKey is no key of any provider's, and long enough to be found wherever it is shown.
const apiKey = "NoKeyOfAnybody-S3cret"

// reads is what a provider whose API can be read must hold to; others pass.
func reads(t *testing.T, s Suite) {
	t.Helper()
	reader, ok := s.Provider.(provider.Reader)
	if !ok {
		return
	}
	api := &provider.API{Key: provider.Secret{Name: "api.key", Value: []byte(apiKey)}}
	if err := reader.CompleteAPI(api); err != nil {
		t.Fatal(err)
	}
	if sited, ok := reader.(provider.Sited); ok {
		if err := sited.Site(s.Source, api); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.HasPrefix(api.BaseURL, "https://") || strings.HasSuffix(api.BaseURL, "/") || api.Rate < 1 || api.Concurrency < 1 {
		t.Errorf("of a key alone CompleteAPI makes %+v", api)
	}
	h := http.Header{}
	if reader.Authorize(api, h); !shows(provider.Call{Header: h}) {
		t.Error("Authorize sets no header with the key")
	}
	calls := []provider.Call{reader.Control(api, s.Source.Account)}
	if of, ok := reader.(provider.ObjectControl); ok {
		calls = append(calls, of.ControlObject(s.Source, api, s.Source.Account, "order", "1"))
	}
	if lister, ok := reader.(provider.EventLister); ok {
		calls = append(calls, lister.ListEvents(api, s.Source.Account, now.Add(-time.Hour), now, ""))
	}
	for _, call := range calls {
		if !strings.HasPrefix(call.Path, "/") || shows(call) {
			t.Errorf("a call has no path, or the key before Authorize gave it: %+v", call)
		}
	}
	judges(t, reader)
}

// judges: what was found came with a 2xx, what is missing with a 404 or 410, and no words show the key.
func judges(t *testing.T, reader provider.Reader) {
	t.Helper()
	for status := range 600 {
		for _, body := range []string{"", "{}", "null", "[1]", "<html>", `{"error": "` + apiKey + `"}`, `{"error": {"code": "` + apiKey + `", "message": "` + apiKey + `"}}`} {
			v := reader.Answer(status, http.Header{"Retry-After": {"3"}}, []byte(body))
			if v.Kind == provider.Found && (status < 200 || status > 299) || v.Kind == provider.Missing && status != http.StatusNotFound && status != http.StatusGone {
				t.Fatalf("%d %s: %+v", status, body, v)
			}
			if v.Kind == provider.Throttled && v.Wait <= 0 || v.Wait < 0 {
				t.Fatalf("%d %s: %+v: nobody knows how long to wait", status, body, v)
			}
			if (v.Detail == "") != (v.Kind == provider.Found) || strings.Contains(v.Detail, apiKey) {
				t.Fatalf("%d %s: %+v: the words are missing, or show the key", status, body, v)
			}
		}
	}
}

// shows tells whether the key stands in a call.
func shows(c provider.Call) bool {
	var head bytes.Buffer
	_ = c.Header.Write(&head) // a buffer takes all
	return strings.Contains(head.String()+c.Path+c.Query.Encode()+string(c.Body), apiKey)
}
