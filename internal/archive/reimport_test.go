package archive_test

import (
	"bytes"
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
	if err != nil {
		t.Fatal(err)
	}
	im, e := in.importParams(), c.Endpoints()[0]
	im.Target, im.Sources["plain"] = "plain", archive.Source{Provider: e.Provider, Config: e.Source}
	return im
}

// write creates a file in a new folder.
func write(t *testing.T, name, text string) (path string) {
	t.Helper()
	return filepath.Join(makeFolder(t, map[string]string{name: text}), name)
}

func wantResult(t *testing.T, what string, im archive.ImportParams, path string, want archive.ImportResult) {
	t.Helper()
	done, err := archive.Import(t.Context(), im, path)
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
	wantResult(t, "the file", im, path, fresh)
	if err := os.Chtimes(path, time.Now(), time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	wantResult(t, "touched", im, path, again)
	wantResult(t, "copied", im, write(t, "x.ndjson", text), again)
	wantResult(t, "grown", im, write(t, "x.ndjson", text+"\n{\"t\":\"ping\"}\n"),
		archive.ImportResult{Read: 5, Added: 1, Duplicate: 3, Bad: 1})
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte(text)); errors.Join(err, w.Close()) != nil {
		t.Fatal(err)
	}
	wantResult(t, "compressed", im, write(t, "x.ndjson.gz", packed.String()), again)
	wantResult(t, "of another name", im, write(t, "y.ndjson", text), fresh)
	for i, want := range []archive.ImportResult{fresh, again} {
		im.Stdin, im.Now = strings.NewReader(text), im.Now.Add(time.Duration(i)*time.Hour)
		wantResult(t, "standard input", im, archive.Stdin, want)
	}
	im.Stdin, im.Name = strings.NewReader(text), "z"
	wantResult(t, "with a name", im, archive.Stdin, fresh)
}

// The files of a folder are distinguished by names and contents, whatever else is in the folder.
func TestImport_folderRepeated_isDuplicate(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im, dir := in.allSampleDeliveries(t), t.TempDir()
	writeFiles(t, dir, map[string]string{"b": `{"t":"ping"}`, "d": `{"t":"ping"}`})
	wantResult(t, "first", im, dir, archive.ImportResult{Read: 2, Added: 2})
	writeFiles(t, dir, map[string]string{"a": `{"t":"ping"}`, "b": `{"t":"ping"}`, "c": `{"t":"ping"}`})
	wantResult(t, "again", im, dir, archive.ImportResult{Read: 4, Added: 2, Duplicate: 2})
}

// Rows without a key column get keys from the file and the row. The file's contents decide, so rows
// of other files are neither duplicates nor conflicts.
func TestImport_filesOfOneName_keepRowsApart(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im := in.importParams()
	im.Target, im.Map = "hmac", map[string]string{"event_type": "what", "object_id": "nr"}
	const january, february = "what,nr,json\norder.made,1,{}\norder.made,2,{}\n",
		"what,nr,json\norder.made,3,{}\norder.made,4,{}\n"
	fresh, again := archive.ImportResult{Read: 2, Added: 2}, archive.ImportResult{Read: 2, Duplicate: 2}
	for _, c := range []struct {
		text string
		want archive.ImportResult
	}{{january, fresh}, {february, fresh}, {january, again}, {february, again}} {
		wantResult(t, c.text, im, write(t, "orders.csv", c.text), c.want)
	}
	wantResult(t, "grown", im, write(t, "orders.csv", january+"order.made,2,{}\n"),
		archive.ImportResult{Read: 3, Added: 1, Duplicate: 2})
	wantResult(t, "another name", im, write(t, "shop2.csv", january), fresh)

	im.Format, im.Stdin = archive.CSV, strings.NewReader(january)
	if done, err := archive.Import(t.Context(), im, archive.Stdin); err == nil ||
		!strings.Contains(err.Error(), "--name") || done.Added != 0 {
		t.Errorf("standard input has no name: %+v, %v", done, err)
	}
	im.Name = "orders.csv"
	for _, c := range []struct {
		text string
		want archive.ImportResult
	}{{january, again}, {"what,nr,json\norder.made,5,{}\n", archive.ImportResult{Read: 1, Added: 1}}} {
		im.Stdin = strings.NewReader(c.text)
		wantResult(t, "standard input", im, archive.Stdin, c.want)
	}

	im.Map = map[string]string{"event_type": "what", "body": "json"}
	wantResult(t, "another map", im, write(t, "orders.csv", january), archive.ImportResult{Read: 2, Conflict: 2,
		GeneratedKeyConflict: 2})
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
		got, err := archive.Import(t.Context(), c.im, one, two)
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", c.what, err, diff)
		}
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

// makeFolder creates a folder with files.
func makeFolder(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	writeFiles(t, dir, files)
	return dir
}

// writeFiles writes files in a folder, and the folders above them.
func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700),
			os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// Without a verified signature, an entry is not an event if its body cannot be from the provider,
// or if its type is unknown: it would be ignored or dead for ever.
func TestImport_otherContent_isBad(t *testing.T) {
	t.Parallel()
	in := setup(t)
	typeless := in.declared(t, "{key: '{json:id}'}")
	forms := in.declared(t, "{body: [json, form], key: '{json:id}', type: '{json:t}'}")
	for what, c := range map[string]struct {
		im       archive.ImportParams
		path     string
		want     archive.ImportResult
		reported []string
	}{
		"objects that are no events": {in.importInto("stripe"),
			write(t, "x.json", `[{"id":"cus_1","object":"customer","created":1780000000}, `+
				`{"id":"pm_1","object":"payment_method","type":"card"}, {"id":"evt_1","object":"event"},
			{"id":"evt_2","type":"t"}, {"id":"evt_3","object":"v2.core.event","type":"t"}, 17]`),
			archive.ImportResult{Read: 6, Added: 2, Bad: 4},
			[]string{`a "customer", not an event`, `a "payment_method", not an event`,
				"cannot determine the event type",
				"a JSON number, not an object"}},
		"other files in a folder": {in.importInto("github", "X-Github-Event", "issues"),
			makeFolder(t, map[string]string{"1 README.md": "# not a delivery",
				"2 cut.json": `{"action":"opened","issue":{"id":1,`, "3": "[]",
				"4": "payload=%7B%7", "5": "payload=%7B%22action%22%3A%22opened%22%7D", "6": `{"action":"opened"}`}),
			archive.ImportResult{Read: 6, Added: 2, Bad: 4},
			[]string{"the body is not JSON: expected a value at byte 0", "the body is not JSON: ",
				"a JSON array, not an object", "begins like a form but is not one"}},
		"without its header": {in.importInto("github", "X-Github-Delivery", "d1"),
			makeFolder(t, map[string]string{"1": `{"action":"opened"}`}), archive.ImportResult{Read: 1, Bad: 1},
			[]string{"pass it with --header"}},
		"a type in the map": {in.importRows("hmac", "event_id=id,event_type=what,body=body"),
			write(t, "x.csv", "id,what,body\n1,a,{}\n2,,{}\n3,unknown,{}\n4,a,nothing\n"),
			archive.ImportResult{Read: 4, Added: 2, Bad: 2},
			[]string{"cannot determine the event type", "the body is not JSON"}},
		"a sender of no types": {typeless, write(t, "x.ndjson", "{\"id\":\"a\"}\n{\"b\":1}\n"),
			archive.ImportResult{Read: 2, Added: 1, Bad: 1}, []string{"cannot determine the event type"}},
		"a sender of forms": {forms,
			makeFolder(t, map[string]string{"1": "id=f1&t=x", "2": "neither", "3": `{"id":"f2","t":"x"}`}),
			archive.ImportResult{Read: 3, Added: 2, Bad: 1}, []string{"the body is not JSON"}},
		"a delivery of many": {in.importInto("hubspot"),
			makeFolder(t, map[string]string{
				"1": `[{"eventId":1,"subscriptionType":"contact.creation","objectId":1},{"eventId":2}]`}),
			archive.ImportResult{Read: 1, Added: 2}, nil},
		"a delivery of something": {in.importInto("hubspot"), makeFolder(t, map[string]string{"1": `{"results":[]}`}),
			archive.ImportResult{Read: 1, Bad: 1}, []string{"no list of events"}},
	} {
		var reported []string
		c.im.Report = func(_ string, why error) { reported = append(reported, why.Error()) }
		wantResult(t, what, c.im, c.path, c.want)
		for i, text := range c.reported {
			if len(reported) != len(c.reported) || !strings.Contains(reported[i], text) ||
				strings.Contains(reported[i], "signature") {
				t.Errorf("%s: reported %q, want %q", what, reported, c.reported)
				break
			}
		}
	}
}

// Every sample of a provider is one event when it is imported from a file.
func TestImport_allSamples_areImported(t *testing.T) {
	t.Parallel()
	in := setup(t)
	for _, e := range in.endpoints {
		files := map[string]string{}
		for i, sample := range e.Provider.Samples() {
			d, err := e.Provider.Sign(e.Source, sample, time.Unix(1_780_000_000, 0))
			if err != nil {
				t.Fatal(err)
			}
			var header bytes.Buffer
			if err := d.Header.Write(&header); err != nil {
				t.Fatal(err)
			}
			files[fmt.Sprint(i)], files[fmt.Sprint(i)+".headers"] = string(d.Body), header.String()
		}
		im := in.importInto(e.Source.Name)
		im.Report = func(where string, why error) { t.Errorf("%s: %s: %v", e.Source.Name, where, why) }
		done, err := archive.Import(t.Context(), im, makeFolder(t, files))
		if err != nil || done.Read != int64(len(files)/2) || done.Added < done.Read {
			t.Errorf("%s: %+v, %v", e.Source.Name, done, err)
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

// importRows returns an import of rows.
func (in *instance) importRows(source, columns string) archive.ImportParams {
	im := in.importInto(source)
	im.Map = map[string]string{}
	for pair := range strings.SplitSeq(columns, ",") {
		field, column, _ := strings.Cut(pair, "=")
		im.Map[field] = column
	}
	return im
}

// A time is read exactly or not at all: no word for a zone counts as UTC, and no date as a number
// of seconds.
func TestReadTime_formats_areRead(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	fine := at.Add(123456 * time.Microsecond)
	for text, want := range map[string]time.Time{
		"2026-03-01T12:00:00Z": at, "2026-03-01 12:00:00": at, "2026-03-01T12:00:00": at,
		" 2026-03-01 12:00:00.000 ": at, "2026-03-01": at.Add(-12 * time.Hour),
		"2026-03-01 12:00:00 UTC": at, "2026-03-01 12:00:00 GMT": at, "2026-03-01 12:00:00Z": at,
		"2026-03-01 12:00:00 Z":     at,
		"2026-03-01T07:00:00-05:00": at, "2026-03-01 13:00:00+01": at, "2026-03-01 17:30:00.123456+05:30": fine,
		"2026-03-01T13:00:00.123456+0100": fine,
		"2026-03-01 13:00:00 +0100":       at, "2026-03-01 13:00:00 +01:00": at,
		"2026-03-01 12:00:00.123456 +0000 UTC": fine,
		"1772366400":                           at, "1772366400000": at,
		"1772366400123":        at.Add(123 * time.Millisecond),
		"1772366400123456":     fine,
		"1970-01-01T00:00:00Z": time.Unix(0, 0), "9999-12-31T23:59:59Z": time.Date(9999, 12, 31, 23, 59, 59, 0,
			time.UTC), "": {},
	} {
		if got, err := archive.ReadTime(text); err != nil || !got.Equal(want) {
			t.Errorf("%q: %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{
		"2026-03-01 12:00:00 EST", "2026-03-01 12:00:00 CEST", "2026-03-01 12:00:00 PDT", "2026-03-01 12:00:00 GMT+3",
		"2026-03-01 13:00:00+01:00 UTC", "2026-03-01 12:00:00 +0100 UTC",
		"2026", "20260301", "202603011200", "20260301120000", "20260301120000000", "0", "-5", "1e9", "1772366400.5",
		"4200000000", "1772366400123456789", "99999999999999999999",
		"0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00", "0000-00-00 00:00:00", "soon",
	} {
		if got, err := archive.ReadTime(text); err == nil {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// A row is set aside if its time cannot be read, or if its time of receipt is in the future.
// Neither is stored with another time.
func TestImport_rowTimes_areUsed(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im := in.importParams()
	im.Target, im.Map = "hmac", map[string]string{"event_type": "what", "received_at": "got", "occurred_at": "was"}
	bad := keepReports(&im)
	text := "what,got,was\na,2026-03-01 12:00:00 " +
		"EST,\nb,1772366400123456,1772366400\nc,,20260301\nd,4070908800,\ne,2026-03-01 12:00:00 GMT,4070908800000\n"
	in.wantImport(t, im, "x.csv", []byte(text), archive.ImportResult{Read: 5, Added: 2, Bad: 3})
	for i, want := range []string{":2 received_at: ", ":4 occurred_at: ",
		":5 it was received at 2099-01-01T00:00:00Z, which is in the future"} {
		if len(*bad) != 3 || !strings.HasPrefix((*bad)[i], want) {
			t.Errorf("bad %q", *bad)
		}
	}
	got := in.db.QueryStrings(t, `SELECT event_type || to_char(received_at AT TIME ZONE 'UTC',
		' YYYY-MM-DD HH24:MI:SS.US') ||
		to_char(occurred_at AT TIME ZONE 'UTC', ' YYYY') FROM events ORDER BY 1`)
	if want := []string{"b 2026-03-01 12:00:00.123456 2026", "e 2026-03-01 12:00:00.000000 2099"}; cmp.Diff(want,
		got) != "" {
		t.Error(cmp.Diff(want, got))
	}
}

// An object without a list is reported and set aside: it may be a page of another form, one event,
// or an API's error.
func TestListReader_otherObjects_areBad(t *testing.T) {
	t.Parallel()
	in := setup(t)
	for name, c := range map[string]struct {
		text string
		want archive.ImportResult
		bad  string
	}{
		"another name": {`{"events":[{"id":"evt_1","object":"event","type":"t"}]}` + "\n",
			archive.ImportResult{Read: 1, Bad: 1}, `{"events":[{"id":"evt_1","object":"event","type":"t"}]}` + "\n"},
		"one event": {"\n {\"id\":\"evt_1\", \"data\":\n{\"object\":{}}} \n", archive.ImportResult{Read: 1, Bad: 1},
			"{\"id\":\"evt_1\", \"data\":\n{\"object\":{}}}\n"},
		"a complaint": {`{"error":{"message":"Invalid API Key"}}`, archive.ImportResult{Read: 1, Bad: 1},
			`{"error":{"message":"Invalid API Key"}}` + "\n"},
		"no data": {`{"object":"list","data":{"data":[1]}}`, archive.ImportResult{Read: 1, Bad: 1},
			`{"object":"list","data":{"data":[1]}}` + "\n"},
		"nothing": {`{}`, archive.ImportResult{Read: 1, Bad: 1}, "{}\n"},
		"beside pages": {`{"data":[]} {"x":1} {"a":"}","data":[{"id":"evt_2","object":"event","type":"t"}]}` +
			`{"y":{"data":[]}} []`,
			archive.ImportResult{Read: 3, Added: 1, Bad: 2}, "{\"x\":1}\n{\"y\":{\"data\":[]}}\n"},
		"cut": {`{"object":"list","url":`, archive.ImportResult{Read: 1, Bad: 1}, `{"object":"list","url":` +
			"\n"},
		"empty ones": {`{"object":"list","data":[]} {"data":null} []`, archive.ImportResult{}, ""},
	} {
		im := in.importParams()
		var reported []string
		im.Target, im.Format, im.BadPath = "stripe", archive.List, filepath.Join(t.TempDir(), "bad")
		im.Report = func(where string, why error) { reported = append(reported, where+" "+why.Error()) }
		in.wantImport(t, im, "x.json", []byte(c.text), c.want)
		if bad, err := os.ReadFile(im.BadPath); string(bad) != c.bad ||
			len(reported) != int(c.want.Bad) || err != nil && c.bad != "" {
			t.Errorf("%s: set aside %q, reported %q, %v", name, bad, reported, err)
		}
		if name == "one event" && !strings.Contains(reported[0], `x.json:2 an object without a list under "data"`) {
			t.Errorf("reported %q", reported)
		}
	}
}

// An import reports if the files have only some of an API's pages: the last page announces further
// ones.
func TestImport_morePages_isReported(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im := in.importParams()
	im.Target = "stripe"
	page := func(id string, more any) string {
		return fmt.Sprintf(`{"object":"list","data":[{"id":"evt_%s","object":"event","type":"t"}],"has_more":%v}`, id,
			more)
	}
	for _, c := range []struct {
		files []string
		more  bool
	}{
		{[]string{page("1", true)}, true},
		{[]string{page("1", true) + page("2", true)}, true},
		{[]string{page("1", true) + page("2", false)}, false},
		{[]string{page("1", true), page("2", false)}, false},
		{[]string{page("1", false), page("2", true)}, true},
		{[]string{page("1", true), "[]"}, true},
		{[]string{`{"has_more":true,"object":"list","data":[]}`}, true},
		{[]string{`{"has_more":true,"data":[]}{"data":[]}`}, false},
		{[]string{page("1", `"true"`)}, false},
	} {
		var paths []string
		im.Format = archive.List
		for _, text := range c.files {
			paths = append(paths, write(t, "x.json", text))
		}
		if done, err := archive.Import(t.Context(), im, paths...); err != nil || done.More != c.more || done.Bad != 0 {
			t.Errorf("%s: %+v, %v", c.files, done, err)
		}
	}
}
