package archive_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"

	"github.com/postern-gateway/postern/internal/archive"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/testkit"
)

// allSampleDeliveries returns an import into a source whose events have no keys; each delivery is
// one event.
func (in *instance) allSampleDeliveries(t *testing.T) archive.ImportParams {
	t.Helper()
	return in.declared(t, "{type: '{json:t}', every_delivery: true}")
}

// declared returns an import into a source whose events have keys.
func (in *instance) declared(t *testing.T, events string) archive.ImportParams {
	t.Helper()
	c, err := config.Parse([]byte("database: {url: postgres://x/y}\nsources: {plain: {provider: hmac, secrets: "+
		"[{name: a, value: abcdefghijklmnopqrstuvwxyz012345}], scheme: {header: X-Sig}, events: "+events+"}}\n"),
		os.Getenv)
	testkit.Must(t, err)
	im, e := in.importParams(), c.Endpoints()[0]
	im.Target, im.Sources["plain"] = "plain", archive.Source{Provider: e.Provider, Config: e.Source}
	return im
}

// write creates a file in a new folder.
func write(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func wantResult(t *testing.T, what string, im archive.ImportParams, want archive.ImportResult, paths ...string) {
	t.Helper()
	done, err := archive.Import(t.Context(), im, paths...)
	if diff := cmp.Diff(want, done); err != nil || diff != "" {
		t.Errorf("%s: %v\n%s", what, err, diff)
	}
}

// Without keys, a file has as many events as entries, and no more if it is read again: copied,
// touched, compressed, grown, or from standard input at another time.
func TestImport_eventsWithoutKeys_repeated_areDuplicates(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im := in.allSampleDeliveries(t)
	im.Report = func(where string, why error) {
		if !strings.Contains(where, ":3") || !strings.Contains(why.Error(), "cannot determine the event type") {
			t.Errorf("%s: %v", where, why)
		}
	}
	const text = "{\"t\":\"ping\"}\n{\"t\":\"ping\"}\n{\"u\":1}\n{\"t\":\"ping\"}"
	fresh, again := archive.ImportResult{Read: 4, Added: 3, Bad: 1}, archive.ImportResult{Read: 4, Duplicate: 3, Bad: 1}
	path := write(t, "x.ndjson", text)
	wantResult(t, "the file", im, fresh, path)
	testkit.Must(t, os.Chtimes(path, time.Now(), time.Now().Add(-time.Hour)))
	wantResult(t, "touched", im, again, path)
	wantResult(t, "copied", im, again, write(t, "x.ndjson", text))
	wantResult(t, "grown", im, archive.ImportResult{Read: 5, Added: 1, Duplicate: 3, Bad: 1},
		write(t, "x.ndjson", text+"\n{\"t\":\"ping\"}\n"))
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte(text)); errors.Join(err, w.Close()) != nil {
		t.Fatal(err)
	}
	wantResult(t, "compressed", im, again, write(t, "x.ndjson.gz", packed.String()))
	wantResult(t, "of one name and other contents", im, archive.ImportResult{Read: 4, Added: 3, Duplicate: 1},
		write(t, "x.ndjson", "{\"t\":\"ping\"}\n{\"t\":\"pong\"}\n{\"t\":\"ping\"}\n{\"t\":\"ping\"}"))
	wantResult(t, "of another name", im, fresh, write(t, "y.ndjson", text))
	for i, want := range []archive.ImportResult{fresh, again} {
		im.Stdin, im.Now = strings.NewReader(text), im.Now.Add(time.Duration(i)*time.Hour)
		wantResult(t, "standard input", im, want, archive.Stdin)
	}
	im.Stdin, im.Name = strings.NewReader(text), "z"
	wantResult(t, "with a name", im, fresh, archive.Stdin)
}

// The file of bad entries never overwrites existing contents. A repeated or interrupted import
// continues after its own earlier entries.
func TestBadFile_exists_isNotOverwritten(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im := in.allSampleDeliveries(t)
	path := write(t, "x.ndjson", "{\"t\":\"ping\"}\nbroken\n{\"t\":\"pong\"}\nbroken too")
	const whole = "broken\nbroken too\n"
	for i, found := range []string{"", "bro", "broken\n", "broken\nbroken too", whole, whole + "of an earlier run\n"} {
		im.BadPath = write(t, "bad entries", found)
		if i == 0 {
			im.BadPath += " for the first time"
		}
		if done, err := archive.Import(t.Context(), im, path); err != nil || done.Bad != 2 {
			t.Errorf("%q: %+v, %v", found, done, err)
		}
		if got, err := os.ReadFile(im.BadPath); err != nil || string(got) != whole && string(got) != found ||
			len(got) < len(found) {
			t.Errorf("%q became %q, %v", found, got, err)
		}
	}
	for _, found := range []string{"precious\n", "broken\nbroken 2\n"} {
		im.BadPath = write(t, "precious", found)
		if _, err := archive.Import(t.Context(), im, path); !errors.Is(err, archive.ErrExists) ||
			!strings.Contains(err.Error(), "--bad") {
			t.Errorf("%q: %v", found, err)
		}
		if got, err := os.ReadFile(im.BadPath); err != nil || string(got) != found {
			t.Errorf("%q became %q, %v", found, got, err)
		}
	}
}

// A dry run counts like the import after it: an event that the files have twice, at any distance
// and in any file, is new once.
func TestImport_dryRun_countsDuplicatesOnce(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im := in.importParams()
	im.Target = "stripe"
	var text strings.Builder
	for _, kind := range []string{"a", "a", "b"} { // each more than a batch, and the last in conflict with the first
		for i := range 600 {
			fmt.Fprintf(&text, "{\"id\":\"evt_%d\",\"object\":\"event\",\"type\":\"%s\"}\n", i, kind)
		}
	}
	one, two := write(t, "x.ndjson", text.String()), write(t, "y.ndjson", text.String())
	want := archive.ImportResult{Read: 3600, Added: 600, Duplicate: 1800, Conflict: 1200}
	few := im
	few.DryRun = true
	few.Remember(500)
	atMost := archive.ImportResult{Read: 3600, Added: 1100, Duplicate: 1500, Conflict: 1000, AtMost: true}
	for _, c := range []struct {
		what string
		im   archive.ImportParams
		dry  bool
		want archive.ImportResult
	}{{"dry", im, true, want}, {"few", few, true, atMost}, {"import", im, false, want}} {
		c.im.DryRun = c.dry
		wantResult(t, c.what, c.im, c.want, one, two)
	}
}

// Sources without a number are kept apart: a key belongs to its source.
func TestImport_dryRun_keepsNewSourcesApart(t *testing.T) {
	t.Parallel()
	from, to := setup(t), setup(t)
	from.register(t)
	for _, source := range []string{"sim", "hmac"} {
		d := from.simple("body", "k1", "k2")
		d.Source = from.sources.Number[source]
		from.append(t, d)
	}
	im := to.importParams()
	im.DryRun, im.Pool = true, to.operator
	to.wantImport(t, im, "x.ndjson", from.export(t, events.Filter{}), archive.ImportResult{Read: 4, Added: 4})
}

// Without a verified signature, an entry is not an event if its body cannot be from the provider,
// or if its type is unknown: it would be ignored or dead for ever.
func TestImport_otherContent_isBad(t *testing.T) {
	t.Parallel()
	in := setup(t)
	typeless := in.declared(t, "{key: '{json:id}'}")
	many := in.importInto("hubspot")
	many.Format = archive.Events // a line that is an array may also begin a JSON array of events
	forms := in.declared(t, "{body: [json, form], key: '{json:id}', type: '{json:t}'}")
	for what, c := range map[string]struct {
		im       archive.ImportParams
		path     string
		want     archive.ImportResult
		reported []string
	}{
		"objects that are no events": {in.importInto("stripe"),
			write(t, "x.json", `{"id":"cus_1","object":"customer","created":1780000000}
				{"id":"pm_1","object":"payment_method","type":"card"}
				{"id":"evt_1","object":"event"}
				{"id":"evt_2","type":"t"}
				{"id":"evt_3","object":"v2.core.event","type":"t"}
				17`),
			archive.ImportResult{Read: 6, Added: 2, Bad: 4},
			[]string{`a "customer", not an event`, `a "payment_method", not an event`,
				"cannot determine the event type",
				"a JSON number, not an object"}},
		"other lines": {in.importInto("github", "X-Github-Event", "issues"),
			write(t, "x.ndjson", "{\"action\":\"opened\"}\n# not a delivery\n{\"action\":\"opened\",\"issue\":{\n"+
				"[]\npayload=%7B%22action%22%3A%22opened%22%7D\n"),
			archive.ImportResult{Read: 5, Added: 1, Bad: 4},
			[]string{"invalid JSON", "invalid JSON", "a JSON array, not an object", "invalid JSON"}},
		"without its header": {in.importInto("github", "X-Github-Delivery", "d1"),
			write(t, "x.ndjson", `{"action":"opened"}`), archive.ImportResult{Read: 1, Bad: 1},
			[]string{"pass it with --header"}},
		"a sender of no types": {typeless, write(t, "x.ndjson", "{\"id\":\"a\"}\n{\"b\":1}\n"),
			archive.ImportResult{Read: 2, Added: 1, Bad: 1}, []string{"cannot determine the event type"}},
		"a sender of forms": {forms, write(t, "x.ndjson", "{\"id\":\"f2\",\"t\":\"x\"}\nid=f1&t=x\n"),
			archive.ImportResult{Read: 2, Added: 1, Bad: 1}, []string{"invalid JSON"}},
		"a delivery of many": {many,
			write(t, "x.ndjson", `[{"eventId":1,"subscriptionType":"contact.creation","objectId":1},{"eventId":2}]`),
			archive.ImportResult{Read: 1, Added: 2}, nil},
		"a delivery of something": {many, write(t, "x.ndjson", `{"results":[]}`),
			archive.ImportResult{Read: 1, Bad: 1}, []string{"no list of events"}},
	} {
		var reported []string
		c.im.Report = func(_ string, why error) { reported = append(reported, why.Error()) }
		wantResult(t, what, c.im, c.want, c.path)
		for i, text := range c.reported {
			if len(reported) != len(c.reported) || !strings.Contains(reported[i], text) ||
				strings.Contains(reported[i], "signature") {
				t.Errorf("%s: reported %q, want %q", what, reported, c.reported)
				break
			}
		}
	}
}

// Every JSON sample of a provider is an event when it is imported from a file with its headers.
func TestImport_allSamples_areImported(t *testing.T) {
	t.Parallel()
	in := setup(t)
	for _, e := range in.endpoints {
		for i, sample := range e.Provider.Samples() {
			d, err := e.Provider.Sign(e.Source, sample, time.Unix(1_780_000_000, 0))
			testkit.Must(t, err)
			im := in.importInto(e.Source.Name)
			im.Header, im.Format = d.Header, archive.Events
			im.Report = func(where string, why error) {
				if json.Valid(d.Body) {
					t.Errorf("%s: %s: %v", e.Source.Name, where, why)
				}
			}
			var line bytes.Buffer
			_ = json.Compact(&line, d.Body) // other bodies leave an empty file
			done, err := archive.Import(t.Context(), im, write(t, fmt.Sprint(i), line.String()))
			if err != nil || json.Valid(d.Body) && (done.Read != 1 || done.Added < 1) {
				t.Errorf("%s %d: %+v, %v", e.Source.Name, i, done, err)
			}
		}
	}
}

// importInto returns an import into a source, with headers for all deliveries.
func (in *instance) importInto(source string, headers ...string) archive.ImportParams {
	im := in.importParams()
	im.Target, im.Header = source, http.Header{}
	for i := 0; i < len(headers); i += 2 {
		im.Header.Set(headers[i], headers[i+1])
	}
	return im
}
