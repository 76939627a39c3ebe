package suite

import (
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/bench/load"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

// A listing has each of its objects once, in as few pages as possible, in Stripe's format. So has
// its tenth.
func TestListing_allPages_haveEachObjectOnce(t *testing.T) {
	t.Parallel()
	const objects, size = 2150, 1000
	// a live key, so the provider reads no test clocks
	api := &provider.API{Key: provider.Secret{Value: []byte("sk_live_listing")}}
	l, err := newListing(objects)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.close(); err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	get := func(url string) ([]byte, error) { return load.Get(t.Context(), url, time.Minute) }
	for tenth, want := range map[bool]int{false: objects, true: objects / 10} {
		calls := l.pages.Load()
		n, cursor := 0, ""
		for page := true; page; page = cursor != "" {
			call := stripe.Stripe{}.ListObjects(nil, api, "", "customer", time.Time{}, time.Time{}, cursor)
			body, err := get(l.address(tenth) + call.Path + "?" + call.Query.Encode())
			if err != nil {
				t.Fatal(err)
			}
			var listed []provider.ListedObject
			if listed, cursor, err = (stripe.Stripe{}).ObjectPage(nil, api, "", "customer", cursor, nil,
				body); err != nil {
				t.Fatal(err)
			}
			for _, one := range listed {
				if one.ObjectID != l.name(n) || string(one.Body) != string(l.object(nil, n)) ||
					len(one.Body) < size*9/10 || len(one.Body) > size*11/10 {
					t.Fatalf("object %d is %s, %d bytes", n, one.ObjectID, len(one.Body))
				}
				n++
			}
		}
		control, err := get(l.address(tenth) + "/v1/customers/" + l.name(want-1))
		if err != nil || string(control) != string(l.object(nil, want-1)) {
			t.Errorf("the last object, read by id, is %s, %v", control, err)
		}
		if _, err := get(l.address(tenth) + "/v1/customers/" + l.name(want)); err == nil {
			t.Error("an object after the last can be read by id")
		}
		if made := int(l.pages.Load() - calls); n != want || made != (want+listPage-1)/listPage {
			t.Errorf("%d objects in %d pages, want %d", n, made, want)
		}
	}
	sample, err := fetch(t.Context(), l.address(false))
	if err != nil || sample.Events != objects {
		t.Errorf("%d objects were fetched: %v", sample.Events, err)
	}
}
