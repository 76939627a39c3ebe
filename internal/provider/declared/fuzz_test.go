package declared_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

// fuzzed are Specs that together use all ways to name events and objects.
func fuzzed() []*declared.Provider {
	var out []*declared.Provider
	for _, change := range []func(*declared.Spec){
		nil,
		func(s *declared.Spec) {
			s.Events.Split, s.Events.Item, s.Events.Key = "l", "x", declared.Templates("{json:id|lower}-{index}",
				"{content}")
			s.Objects[0].State, s.Objects[0].Before = "root:l.0", "root:was"
		},
		func(s *declared.Spec) {
			s.Events.Split, s.Events.Account, s.Events.UniquePerDelivery = "l.*.x", declared.Templates("{root:l.*.id}"),
				true
			s.Events.Key, s.Events.Omit = declared.Templates("{header:X-Id}{query:id}"), []string{"at", "data.id"}
			s.Objects[0].Deletes, s.Objects[0].Final = []string{"*d*"}, true
		},
		func(s *declared.Spec) {
			s.Events.Split, s.Objects[0].Version = ".", declared.OwnVersion("json:at", declared.Integer)
			s.Objects[0].Deletes, s.Objects[0].State, s.Objects[0].Changes = []string{"t"}, ".", "changes"
		},
		func(s *declared.Spec) {
			s.Events.Bodies = []declared.BodyForm{declared.Payload, declared.Form, declared.JSON}
			s.Events.Key, s.Events.APIVersion = declared.Templates("{form:id}{form:at}"),
				declared.Templates("[{json:at}]")
			s.Objects = []declared.Object{{Events: []string{"a*"}, Ignored: "none"},
				{Type: declared.Templates("{type}"), ID: declared.Templates("{form:id}"), Partial: "a part"}}
		},
	} {
		out = append(out, declared.New(testSpec(change)))
	}
	return out
}

// No body, header or query causes a panic, an event that cannot be stored, or an observation
// without one of the three shapes.
func FuzzDeclared(f *testing.F) {
	for _, body := range []string{
		`{"id":"a","type":"t","at":1783168215,"data":{"id":"1"}}`,
		`{"l":[{"id":"a","x":{"id":"B","type":"d","at":"2026-07-04T12:30:15.25Z","data":{"id":1}}},` +
			`{"x":[{"id":"c"}]},null],"was":{}}`,
		`[{"id":"a","type":"t","at":7,"data":{"id":true},"changes":{"at":{"previous":6,"current":7}}},3]`,
		"id=a&type=t&at=1783168215&payload=1", "payload=%7B%22id%22%3A1%7D", "\xff", `{"id":"\ud800","type":"\u0000"}`,
		"[[[[", "",
	} {
		f.Add([]byte(body), "h1", "id=q")
	}
	all := fuzzed()
	f.Fuzz(func(t *testing.T, body []byte, header, query string) {
		for _, p := range all {
			d := &provider.Delivery{Header: http.Header{"X-Id": {header}}, Query: query, Body: body,
				ReceivedAt: time.Unix(1783168215, 0)}
			providertest.CheckSound(t, p, &provider.Source{}, d)
			providertest.CheckSound(t, p, &provider.Source{Account: "acct", Accounts: []string{"a"}}, d)
		}
	})
}
