package declared_test

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/signature"
)

// testSpec describes a sender of events {"id", "type", "at", "data"}.
func testSpec(change func(*declared.Spec)) declared.Spec {
	spec := declared.Spec{
		Name: "test",
		Schemes: []*signature.Scheme{{Name: "s",
			Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-S")}},
			Message:   signature.MustTemplate("{body}")}},
		Events: declared.Events{Key: declared.Templates("{json:id}"), Type: declared.Templates("{json:type}"),
			OccurredAt: declared.TimeAt("json:at", declared.Auto)},
		Objects: []declared.Object{{Type: declared.Templates("thing"), ID: declared.Templates("{json:data.id}"),
			State: "data"}},
	}
	if change != nil {
		change(&spec)
	}
	return spec
}

// summaries returns each event of a delivery: its key, type and account, and the summary of its
// observation.
func summaries(t *testing.T, p *declared.Provider, d *provider.Delivery) []string {
	t.Helper()
	src := &provider.Source{Name: "s", Accounts: []string{"*"}}
	providertest.CheckSound(t, p, src, d)
	events, err := p.Identify(src, d)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for i, e := range events {
		summary := providertest.Summary(p.Observe(src, &provider.StoredEvent{Key: e.Key, Type: e.Type,
			Account: e.Account, Index: i, Body: d.Body}))
		key := e.Key
		if e.ContentKey {
			key = "content"
		}
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s %s", key, e.Type, e.Account))+": "+summary)
	}
	return out
}

func delivery(body string) *provider.Delivery {
	return &provider.Delivery{Header: http.Header{}, Body: []byte(body), ReceivedAt: time.Date(2026, 7, 4, 12, 30, 15,
		0, time.UTC)}
}

func TestMatches_patterns_matchTypes(t *testing.T) {
	t.Parallel()
	alphabet := rapid.StringOfN(rapid.SampledFrom([]rune("ab.*")), 0, 8, -1)
	rapid.Check(t, func(t *rapid.T) {
		pattern := alphabet.Draw(t, "pattern")
		text := pattern // each * is replaced by a text, mostly a matching one, and sometimes the text is changed
		for strings.Contains(text, "*") {
			text = strings.Replace(text, "*", strings.ReplaceAll(alphabet.Draw(t, "any"), "*", "c"), 1)
		}
		text = text[min(len(text), rapid.IntRange(0, 1).Draw(t, "cut")):] +
			rapid.SampledFrom([]string{"", "", "a", "c"}).Draw(t, "after")
		want := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") +
			"$").MatchString(text)
		if got := declared.Matches([]string{"no such", pattern}, text); got != want {
			t.Fatalf("%q matches %q: %v", text, pattern, got)
		}
	})
}

func TestUnit_Read_texts_giveTimeAndResolution(t *testing.T) {
	t.Parallel()
	const none = "the event has no version and no time, so its order is unknown"
	for _, tc := range []struct {
		unit declared.Unit
		text string
		want string
	}{
		{declared.Auto, `1783168215`, "1783168215000000/1000000"},
		{declared.Auto, `"1783168215"`, "1783168215000000/1000000"},
		{declared.Auto, `1783168215250`, "1783168215250000/1000"},
		{declared.Auto, `1783168215.25`, "1783168215250000/1000"},
		{declared.Auto, `1783168215.0`, "1783168215000000/1000000"},
		{declared.Auto, `1.783168215e9`, "1783168215000000/1000000"},
		{declared.Auto, `99999999999`, "99999999999000000/1000000"},
		{declared.Auto, `100000000000`, "100000000000000/1000"},
		{declared.Auto, `"2026-07-04T12:30:15Z"`, "1783168215000000/1000000"},
		{declared.Auto, `"2026-07-04T12:30:15.000Z"`, "1783168215000000/1000000"},
		{declared.Auto, `"2026-07-04T12:30:15.250Z"`, "1783168215250000/1000"},
		{declared.Auto, `"2026-07-04T12:30:15.250123456+02:00"`, "1783161015250123/1000"},
		{declared.Auto, `"2026-07-04T12:30:15.250+0200"`, "1783161015250000/1000"},
		{declared.Auto, `"2026-07-04T12:30:15.25"`, "1783168215250000/1000"},
		{declared.Auto, `"2026-07-04 12:30:15 UTC"`, "1783168215000000/1000000"},
		{declared.Auto, `"2026-07-04 12:30:15"`, "1783168215000000/1000000"},
		{declared.Auto, `"2026-07-04 12:30:15 +0200"`, "1783161015000000/1000000"},
		{declared.Auto, `"2026-07-04 12:30:15 PST"`, none}, // a time without an offset is ambiguous
		{declared.Auto, `"2026-07-04"`, none},
		{declared.Auto, `"10000-01-01T00:00:00Z"`, none},
		{declared.Auto, `"1969-12-31T23:59:59Z"`, none},
		{declared.Auto, `0`, none},
		{declared.Auto, `-5`, none},
		{declared.Auto, `0.0000001`, none},
		{declared.Auto, `1e400`, none},
		{declared.Auto, `9999999999999999999999`, none},
		{declared.Auto, `"0x1p30"`, none},
		{declared.Auto, `"Infinity"`, none},
		{declared.Auto, `"NaN"`, none},
		{declared.Auto, `true`, none},
		{declared.Auto, `null`, none},
		{declared.Auto, `{}`, none},
		{declared.Auto, `""`, none},
		{declared.Seconds, `100000000000`, "100000000000000000/1000000"},
		{declared.Seconds, `1783168215250`, none}, // the year 58475
		{declared.Seconds, `"2026-07-04T12:30:15Z"`, none},
		{declared.Milliseconds, `1783168215000`, "1783168215000000/1000"},
		{declared.Milliseconds, `1783168215`, "1783168215000/1000"},
		{declared.RFC3339, `"2026-07-04T12:30:15Z"`, "1783168215000000/1000000"},
		{declared.RFC3339, `1783168215`, none},
		{declared.Integer, `7`, "7/1"},
		{declared.Integer, `"7"`, "7/1"},
		{declared.Integer, `0`, "0/1"},
		{declared.Integer, `7e2`, "700/1"},
		{declared.Integer, `7.5`, none},
		{declared.Integer, `-1`, none},
		{declared.Integer, `9223372036854775807`, "9223372036854775807/1"},
		{declared.Integer, `9223372036854775808`, none},
	} {
		p := declared.New(testSpec(func(s *declared.Spec) {
			s.Objects[0].Version = &declared.Version{From: signature.MustRef("json:v"), Unit: tc.unit}
		}))
		want := "k t: thing 1, at " + tc.want + ", rank 1, own"
		if tc.want == none {
			want = "k t: thing 1, partial: " + none
		}
		got := summaries(t, p, delivery(`{"id":"k","type":"t","at":1783168215,"v":`+tc.text+`,"data":{"id":"1"}}`))
		if diff := cmp.Diff([]string{want}, got); diff != "" {
			t.Errorf("unit %s, %s: %s", tc.unit, tc.text, diff)
		}
	}
}

func TestIdentify_batches_areSplit(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		split, item, body string
		want              []string
	}{
		"two": {"l", "",
			`{"l":[{"id":"a","type":"t","at":5,"data":{"id":"1"}},{"id":"b","type":"t","data":{"id":"2"}}]}`,
			[]string{"a t: thing 1, at 5000000/1000000, rank 1", "b t: thing 2, partial: the event has no " +
				"version and no time, so its order is unknown"}},
		"the body": {".", "", `[{"id":"a","type":"t","data":{"id":"1"},"at":5}]`,
			[]string{"a t: thing 1, at 5000000/1000000, rank 1"}},
		"in an item": {"l", "x.y", `{"l":[{"x":{"y":{"id":"a","type":"t","data":{"id":"1"},"at":5}}}]}`,
			[]string{"a t: thing 1, at 5000000/1000000, rank 1"}},
		"no item": {"l", "x", `{"l":[{"y":1},{"y":2},3,null,"s"]}`,
			slicesOf(5, "content unknown: ignored: the event has no object type or id, although events of its type "+
				"should")},
		"empty":   {"l", "", `{"l":[]}`, []string{"content empty: ignored: the delivery has no events"}},
		"no list": {"l", "", `{"m":[]}`, []string{`content unknown: dead: the body has no list of events at "l"`}},
		"list of text": {"l", "", `{"l":"abc"}`,
			[]string{`content unknown: dead: the body has no list of events at "l"`}},
		"two equal events": {"l", "", `{"l":[{"type":"t"},{"type":"t"}]}`,
			slicesOf(2, "content t: ignored: the event has no object type or id, although events of its type should")},
		"lists in lists": {"e.*.c", "",
			`{"e":[{"c":[{"id":"a","type":"t"},{"id":"b","type":"t"}]},{"c":[]},{"other":1},` +
				`{"c":[{"id":"d","type":"t"}]}]}`,
			[]string{"a t: ignored: the event has no object type or id, although events of its type should",
				"b t: ignored: the event has no object type or id, although events of its type should",
				"content unknown: ignored: the event has no object type or id, although events of its type should",
				"d t: ignored: the event has no object type or id, although events of its type should"}},
		"too many": {"l", "", `{"l":[` + strings.Repeat("1,", 1000) + `1]}`,
			[]string{"content unknown: dead: the body holds more than 1000 events"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := declared.New(testSpec(func(s *declared.Spec) { s.Events.Split, s.Events.Item = tc.split, tc.item }))
			if diff := cmp.Diff(tc.want, summaries(t, p, delivery(tc.body))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func slicesOf(n int, text string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = text
	}
	return out
}

// In nested lists, paths with * refer to the elements that contain the event.
func TestIdentify_nestedLists_areSplit(t *testing.T) {
	t.Parallel()
	p := declared.New(testSpec(func(s *declared.Spec) {
		s.Events.Split = "e.*.in.c"
		s.Events.Key = declared.Templates("{root:e.*.id}/{root:e.*.in.c.*.n}/{index}")
		s.Events.Account = declared.Templates("{root:e.*.in.who}")
		s.Events.Type = declared.Templates("{root:all}")
		s.Objects = []declared.Object{{Type: declared.Templates("{type}"),
			ID: declared.Templates("{root:e.*.id}-{json:n}")}}
	}))
	got := summaries(t, p, delivery(`{"all":"x","e":[{"id":1,"in":{"who":"ann","c":[{"n":1},{"n":2}]}},`+
		`{"id":2,"in":{"who":"bob","c":[{"n":1}]}}]}`))
	const partial = ", partial: the event has no state of its object"
	want := []string{"1/1/0 x ann: ann x 1-1" + partial, "1/2/1 x ann: ann x 1-2" + partial,
		"2/1/2 x bob: bob x 2-1" + partial}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	p = declared.New(testSpec(func(s *declared.Spec) {
		s.Events.Split, s.Events.Key = ".", declared.Templates("{root:*.n}")
	}))
	if got := summaries(t, p, delivery(`[{"n":"a"},{"n":"b"}]`)); len(got) != 2 || !strings.HasPrefix(got[0], "a ") ||
		!strings.HasPrefix(got[1], "b ") {
		t.Error(got)
	}
}

// Events without a key are the same event if their content is equal, without the omitted paths.
// Unreadable events are never the same.
func TestIdentify_eventsWithoutKey_getContentKeys(t *testing.T) {
	t.Parallel()
	key := func(p *declared.Provider, body string) string {
		events, err := p.Identify(&provider.Source{}, delivery(body))
		if err != nil || len(events) == 0 {
			t.Fatal(err)
		}
		return events[0].Key
	}
	plain := declared.New(testSpec(nil))
	omit := declared.New(testSpec(func(s *declared.Spec) { s.Events.Omit = []string{"try", "data.sent"} }))
	content := declared.New(testSpec(func(s *declared.Spec) {
		s.Events.Key, s.Events.Omit = declared.Templates("c-{content}"), []string{"try"}
	}))
	batch := declared.New(testSpec(func(s *declared.Spec) { s.Events.Split, s.Events.Item = "l", "x" }))
	for name, tc := range map[string]struct {
		p    *declared.Provider
		a, b string
		same bool
	}{
		"same":                 {plain, `{"try":1}`, `{"try":1}`, true},
		"same but for its end": {plain, `{"try":1}`, "{\"try\":1}\n", true},
		"other":                {plain, `{"try":1}`, `{"try":2}`, false},
		"another attempt": {omit, `{"try":1,"data":{"sent":1,"x":1}}`, `{"data":{"x":1,"sent":2},"try":2}`,
			true},
		"another attempt, other":         {omit, `{"try":1,"data":{"x":1}}`, `{"try":1,"data":{"x":2}}`, false},
		"content":                        {content, `{"try":1,"a":2}`, `{"a":2.0,"try":2}`, true},
		"other content":                  {content, `{"a":2}`, `{"a":3}`, false},
		"content of an unreadable event": {content, `nonsense`, `other nonsense`, false},
		"element without an event":       {batch, `{"l":[{"y":1}]}`, `{"l":[{"y":2}]}`, false},
		"in another delivery":            {batch, `{"l":[{"x":{"a":1}}]}`, `{"l":[{"x":{"a":1}},{"x":{"a":2}}]}`, true},
	} {
		if (key(tc.p, tc.a) == key(tc.p, tc.b)) != tc.same {
			t.Errorf("%s: keys %s and %s", name, key(tc.p, tc.a), key(tc.p, tc.b))
		}
	}
	if !strings.HasPrefix(key(content, `{}`), "c-") || !strings.HasPrefix(key(content, `nonsense`), "sha256:") {
		t.Errorf("%s, %s", key(content, `{}`), key(content, `nonsense`))
	}
}

func TestIdentify_forms_areRead(t *testing.T) {
	t.Parallel()
	p := declared.New(testSpec(func(s *declared.Spec) {
		s.Events.Bodies = []declared.BodyForm{declared.JSON, declared.Payload, declared.Form}
		s.Events.Key = declared.Templates("{json:id}", "{form:the.id}")
		s.Events.OccurredAt = nil
	}))
	const partial = "thing 1, partial: the event has no version and no time, so its order is unknown"
	for body, want := range map[string]string{
		`{"id":"a","type":"t","data":{"id":"1"}}`: "a t: " + partial,
		"payload=%7B%22id%22%3A%22a%22%2C%22type%22%3A%22t%22%7D": "a t: ignored: the event has no object type or " +
			"id, although events of its type should",
		"the.id=f&type=t&x=1&x=2": "f t: ignored: the event has no object type or id, " +
			"although events of its type should",
		"payload=nonsense&type=t": "content t: ignored: the event has no object " +
			"type or id, although events of its type should",
		"nonsense":                     "content unknown: dead: the body is not JSON: *",
		"a=%zz":                        "content unknown: dead: *",
		strings.Repeat("a=1&", 10_001): "content unknown: dead: *",
	} {
		got := summaries(t, p, delivery(body))
		stem, open := strings.CutSuffix(want, "*")
		if len(got) != 1 || !open && got[0] != want || !strings.HasPrefix(got[0], stem) {
			t.Errorf("%.60s: %v, want %s", body, got, want)
		}
	}
}

// A token is a credential in any place, and is not stored with events.
func TestHeaders_credentials_areLeftOut(t *testing.T) {
	t.Parallel()
	for position, header := range map[string]string{"header:X-Token": "X-Token", "query:token": declared.QueryHeader} {
		spec := testSpec(func(s *declared.Spec) {
			s.Schemes[0].Method, s.Schemes[0].Signature.In = signature.Token,
				[]signature.Ref{signature.MustRef(position)}
			s.Events.Type, s.Headers = declared.Templates("{header:X-Type}", "{query:type}"),
				[]string{"x-token", "X-More"}
		})
		stored := strings.Join(declared.New(spec).Headers(), " ")
		if strings.Contains(stored, header) || !strings.Contains(stored, "X-Type") ||
			!strings.Contains(stored, "X-More") {
			t.Errorf("%s: stored %s", position, stored)
		}
	}
}

// The values that a scheme reads are stored, so that a rejected delivery can be verified again.
func TestHeaders_schemeHeaders_areIncluded(t *testing.T) {
	t.Parallel()
	spec := testSpec(func(s *declared.Spec) {
		s.Schemes[0].Message = signature.MustTemplate("{header:X-A}{timestamp}")
		s.Schemes[0].Or = []signature.Template{signature.MustTemplate("{header:X-B}{timestamp}")}
		s.Schemes[0].Timestamp = &signature.Clock{From: signature.MustRef("header:X-C")}
		s.Schemes[0].When = &signature.Condition{From: signature.MustRef("header:X-D"), Is: "2"}
		s.Schemes[0].Body = &signature.BodyDigest{From: signature.MustRef("query:sum")}
		s.Headers = []string{"x-e"}
	})
	stored := declared.New(spec).Headers()
	want := []string{declared.QueryHeader, "Content-Type", "User-Agent", "X-A", "X-B", "X-C", "X-D", "X-E", "X-S"}
	if diff := cmp.Diff(want, stored); diff != "" {
		t.Error(diff)
	}
}

// A query parameter can be the key, with or without a configured address.
func TestIdentify_queryParameter_namesEvent(t *testing.T) {
	t.Parallel()
	p := declared.New(testSpec(func(s *declared.Spec) { s.Events.Type = declared.Templates("{query:type}") }))
	for _, url := range []string{"", "https://hooks.example/webhooks/a", "https://hooks.example/webhooks/a?type=mine"} {
		d := delivery(`{"id":"a"}`)
		d.Query = "type=theirs"
		events, err := p.Identify(&provider.Source{URL: url}, d)
		if err != nil || events[0].Type != "theirs" {
			t.Errorf("%q: %+v, %v", url, events, err)
		}
	}
}

func TestIdentify_accounts_areAllowedOrRejected(t *testing.T) {
	t.Parallel()
	p := declared.New(testSpec(func(s *declared.Spec) { s.Events.Account = declared.Templates("{json:who}") }))
	for name, tc := range map[string]struct {
		src  provider.Source
		want string
		ok   bool
	}{
		"any":       {provider.Source{}, "ann", true},
		"pinned":    {provider.Source{Account: "ann"}, "ann", true},
		"other":     {provider.Source{Account: "bob"}, "", false},
		"allowed":   {provider.Source{Accounts: []string{"bob", "ann"}}, "ann", true},
		"forbidden": {provider.Source{Accounts: []string{"bob"}}, "", false},
		"wildcard":  {provider.Source{Account: "bob", Accounts: []string{"*"}}, "ann", true},
	} {
		events, err := p.Identify(&tc.src, delivery(`{"id":"a","who":"ann"}`))
		var rejection *provider.Rejection
		if tc.ok && (err != nil || events[0].Account != tc.want) || !tc.ok && !errors.As(err, &rejection) {
			t.Errorf("%s: %+v, %v", name, events, err)
		}
	}
	events, err := p.Identify(&provider.Source{Account: "bob"}, delivery(`{"id":"a"}`))
	if err != nil || events[0].Account != "bob" {
		t.Errorf("%+v, %v", events, err)
	}
}

// If each event is signed, all signatures must be right. An unverified body is not parsed.
func TestVerify_signedItems_areVerifiedEach(t *testing.T) {
	t.Parallel()
	p := declared.New(testSpec(func(s *declared.Spec) {
		s.SignedItems, s.Events.Split, s.Events.Item = true, "l", "x"
		s.Schemes[0].Signature.In = []signature.Ref{signature.MustRef("json:sig")}
		s.Schemes[0].Message = signature.MustTemplate("{json:id}:{json:n}")
	}))
	src := &provider.Source{Secrets: []provider.Secret{{Name: "n", Value: []byte("secret")}}}
	signed, err := p.Sign(src, provider.Sample{Body: []byte(`{"l":[{"x":{"id":"a","n":1}},{"x":{"id":"b","n":2}}]}`)},
		time.Unix(1783168215, 0))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Verify(src, signed); err != nil {
		t.Fatal(err)
	}
	whole := string(signed.Body)
	for name, tc := range map[string]struct {
		body string
		want provider.Reason
	}{
		"second changed": {strings.Replace(whole, `"n":2`, `"n":3`, 1), provider.WrongSignature},
		"first changed":  {strings.Replace(whole, `"n":1`, `"n":3`, 1), provider.WrongSignature},
		"one more": {strings.Replace(whole, `{"l":[`, `{"l":[{"x":{"id":"c","n":1}},`, 1),
			provider.MissingSignature},
		"one without a signature": {strings.Replace(whole, `{"l":[`, `{"l":[{},`, 1), provider.MissingSignature},
		"none":                    {`{"l":[]}`, provider.MissingSignature},
		"no list":                 {`{}`, provider.MissingSignature},
		"nothing":                 {"", provider.MissingSignature},
		"too long a body":         {whole + strings.Repeat(" ", 256<<10), provider.MalformedSignature},
	} {
		_, err := p.Verify(src, delivery(tc.body))
		var rejection *provider.Rejection
		if !errors.As(err, &rejection) || rejection.Reason != tc.want {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
}

// An event is not read as another event after the configuration of the list, keys or types changed.
func TestObserve_changedConfiguration_isDead(t *testing.T) {
	t.Parallel()
	const body = `{"id":"whole","type":"batch","l":[{"id":"a","type":"t","at":5,"data":{"id":"1"}}],` +
		`"m":[{"id":"b","type":"t","at":5,"data":{"id":"2"}},` +
		`{"id":"a","type":"u","at":5,"data":{"id":"3"}},{"type":"t","at":5,"data":{"id":"4"}}]}`
	split := func(list string) *declared.Provider {
		return declared.New(testSpec(func(s *declared.Spec) { s.Events.Split = list }))
	}
	byHeader := declared.New(testSpec(func(s *declared.Spec) {
		s.Events.Split, s.Events.Key, s.Events.Type = "m", declared.Templates("{header:X-K}"),
			declared.Templates("{header:X-T}")
	}))
	dead := "dead: the configuration of the source changed since the event was received*"
	for name, tc := range map[string]struct {
		p         *declared.Provider
		key, kind string
		index     int
		want      string
	}{
		"unchanged configuration": {split("l"), "a", "t", 0, "thing 1,*"},
		"another list":            {split("m"), "a", "t", 0, dead},
		"no list":                 {split(""), "a", "t", 0, dead},
		"another type":            {split("m"), "a", "t", 1, dead},
		"a content key":           {split("m"), "sha256:0a", "t", 2, "thing 4,*"},
		"another key path":        {byHeader, "any", "t", 0, "thing 2,*"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, err := tc.p.Observe(&provider.Source{}, &provider.StoredEvent{Key: tc.key, Type: tc.kind,
				Index: tc.index,
				Body:  []byte(body)})
			var d *provider.Dead
			if err != nil && !errors.As(err, &d) {
				t.Fatal(err)
			}
			if summary := providertest.Summary(o, err); !strings.HasPrefix(summary, strings.TrimSuffix(tc.want, "*")) {
				t.Errorf("%s, want %s", summary, tc.want)
			}
		})
	}
}

// A token is stored under none of its headers, however many there are. A numbered signature is
// stored under up to twenty.
func TestHeaders_numberedNames_areExpanded(t *testing.T) {
	t.Parallel()
	numbered := func(method signature.Method) []string {
		return declared.New(testSpec(func(s *declared.Spec) {
			s.Headers = []string{"x-token-7", "x-token-50", "x-token-more"}
			s.Schemes = []*signature.Scheme{{Name: "s", Method: method, Encoding: signature.Plain,
				Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Token-#")}}}}
		})).Headers()
	}
	tokens := numbered(signature.Token)
	for _, name := range tokens {
		if strings.HasPrefix(name, "X-Token-") && name != "X-Token-More" {
			t.Errorf("the token in %s is stored", name)
		}
	}
	if !slices.Contains(tokens, "X-Token-More") {
		t.Errorf("no X-Token-More in %v", tokens)
	}
	for _, name := range []string{"X-Token-1", "X-Token-20", "X-Token-50"} {
		if stored := numbered(signature.HMAC); !slices.Contains(stored, name) {
			t.Errorf("no %s in %v", name, stored)
		}
	}
}

// Challenges depends on the Spec.
func TestChallenges_spec_saysWhetherAnswered(t *testing.T) {
	t.Parallel()
	none := declared.New(testSpec(nil))
	some := declared.New(testSpec(func(s *declared.Spec) {
		s.Challenge = func(*provider.Source, *provider.Delivery) *provider.Reply { return nil }
	}))
	if provider.Challenges(none) || !provider.Challenges(some) {
		t.Errorf("challenges: %v without, %v with one", provider.Challenges(none), provider.Challenges(some))
	}
}

// In a form whose fields are signed without separators, a repeated field means that the event names
// no object. If the body is signed it does.
func TestObserve_repeatedFormField_isIgnored(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{"{sorted_form}": "k t: ignored: a field of the form occurs twice*",
		"{body}": "k t: thing 1, partial: *"} {
		p := declared.New(testSpec(func(s *declared.Spec) {
			s.Schemes[0].Message = signature.MustTemplate(message)
			s.Events.Bodies = []declared.BodyForm{declared.Form}
			s.Objects[0].ID, s.Objects[0].State = declared.Templates("{form:n}"), ""
		}))
		got := summaries(t, p, &provider.Delivery{Header: http.Header{},
			Body: []byte("id=k&type=t&n=1&other=a&other=b")})
		if len(got) != 1 || !strings.HasPrefix(got[0], strings.TrimSuffix(want, "*")) {
			t.Errorf("%s: %v, want %s", message, got, want)
		}
	}
}
