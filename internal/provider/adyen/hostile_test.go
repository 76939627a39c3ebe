package adyen_test

import (
	"bytes"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/adyen"
)

// hostile are bodies of nearly the largest size that is searched, which nobody signed.
func hostile() map[string]string {
	const size = 250 << 10
	signed := `{"NotificationRequestItem":{"additionalData":{"hmacSignature":"coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0="},"pspReference":"`
	list := func(items string) string { return `{"notificationItems":[` + items + `]}` }
	fill := func(unit, last string) string { return strings.Repeat(unit, size/len(unit)) + last }
	return map[string]string{
		"numbers":      list(fill("1,", "1")),
		"empty items":  list(fill(`{"NotificationRequestItem":{}},`, `{}`)),
		"many members": list(`{"NotificationRequestItem":{` + fill(`"a":1,`, `"b":2`) + `}}`),
		"long text":    list(signed + strings.Repeat("a", size-len(signed)) + `"}}`),
		"many signed":  list(fill(signed+`"}},`, signed+`"}}`)),
		"deep":         list(strings.Repeat(`[`, 5000) + strings.Repeat(`]`, 5000)),
		"other":        `{"a":[` + fill("1,", "1") + `]}`,
	}
}

// What nobody has proven costs no more than a few times its size.
func TestHostileBodyIsCheap(t *testing.T) { // allocations are counted for the whole process, so not beside others
	s := suite()
	p := adyen.New()
	for name, body := range hostile() {
		d := &provider.Delivery{Header: http.Header{}, Body: []byte(body)}
		var before, after runtime.MemStats
		const times = 3
		runtime.ReadMemStats(&before)
		for range times {
			if _, err := p.Verify(s.Source, d); err == nil {
				t.Errorf("%s: it is taken", name)
			}
		}
		runtime.ReadMemStats(&after)
		if cost := (after.TotalAlloc - before.TotalAlloc) / times; cost > 2_000_000 {
			t.Errorf("%s: %d bytes of body cost %d", name, len(body), cost)
		}
	}
}

// Nothing is looked at after the first notification that does not prove, and no delivery has a thousand of them.
func TestNotificationsAreProvenInTurn(t *testing.T) {
	t.Parallel()
	s := suite()
	d := s.Deliver(t, s.Source, s.Provider.Samples()[0])
	start, end := bytes.IndexByte(d.Body, '[')+1, bytes.LastIndexByte(d.Body, ']')
	one := bytes.TrimSpace(d.Body[start:end])
	with := func(n int, more string) *provider.Delivery {
		items := bytes.Repeat(append(bytes.Clone(one), ','), n)
		out := *d
		out.Body = []byte(`{"notificationItems":[` + string(items) + more + `]}`)
		return &out
	}
	if _, err := s.Provider.Verify(s.Source, with(2, string(one))); err != nil {
		t.Errorf("three that are signed: %v", err)
	}
	s.Refused(t, s.Source, with(2, `{}`), provider.MissingSignature)
	s.Refused(t, s.Source, with(0, ``), provider.MissingSignature)
	s.Refused(t, s.Source, with(2, `[1`), provider.MissingSignature)
	twice := with(0, string(one))
	twice.Body = append([]byte(`{"notificationItems":[{"NotificationRequestItem":{}}],`), twice.Body[1:]...)
	if _, err := s.Provider.Verify(s.Source, twice); err != nil { // the last member of a name counts for both readers
		t.Errorf("two lists, the last signed: %v", err)
	}
}
