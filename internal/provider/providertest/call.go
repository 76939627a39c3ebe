package providertest

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// Call sends a call to an API. It returns the reader's verdict on the response, and the response.
func Call(t *testing.T, r provider.Reader, api *provider.API, call provider.Call) (provider.Verdict, http.Header,
	[]byte) {
	t.Helper()
	address := api.BaseURL + call.Path + "?" + call.Query.Encode()
	req, err := http.NewRequestWithContext(t.Context(), call.Method, address, bytes.NewReader(call.Body))
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(req.Header, call.Header)
	r.Authorize(api, req.Header)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.Answer(resp.StatusCode, resp.Header, body), resp.Header, body
}

// Listing is a list of an account's objects of a type.
type Listing struct {
	Lister        provider.ObjectLister
	Source        *provider.Source
	API           *provider.API
	Account, Type string
	Since, Until  time.Time
	// Edit changes each call, and Between is called between the pages. Both may be nil.
	Edit    func(*provider.Call)
	Between func()
}

// Page reads one page.
func (l Listing) Page(t *testing.T, cursor string) (page []provider.ListedObject, next string) {
	t.Helper()
	call := l.Lister.ListObjects(l.Source, l.API, l.Account, l.Type, l.Since, l.Until, cursor)
	if l.Edit != nil {
		l.Edit(&call)
	}
	v, header, body := Call(t, l.Lister, l.API, call)
	if v.Kind != provider.Found {
		t.Fatalf("list %s at %q: %+v: %s", l.Type, cursor, v, body)
	}
	page, next, err := l.Lister.ObjectPage(l.Source, l.API, l.Account, l.Type, cursor, header, body)
	if err != nil {
		t.Fatalf("list %s at %q: %v", l.Type, cursor, err)
	}
	return page, next
}

// Read reads all pages.
func (l Listing) Read(t *testing.T) (all []provider.ListedObject, pages int) {
	t.Helper()
	for cursor := ""; ; {
		page, next := l.Page(t, cursor)
		all = append(all, page...)
		if pages++; next == "" {
			return all, pages
		}
		if next == cursor || pages > 1000 {
			t.Fatalf("list %s: page %d repeats: %q", l.Type, pages, next)
		}
		if cursor = next; l.Between != nil {
			l.Between()
		}
	}
}
