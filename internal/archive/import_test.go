package archive_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/postern-gateway/postern/internal/archive"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// An import is interrupted after each of its batches and repeated from the beginning. The resulting
// log is the same.
func TestImport_interrupted_canBeRepeated(t *testing.T) {
	t.Parallel()
	from, to := setup(t), setup(t)
	from.register(t)
	var ds []events.Delivery
	for i := range 900 {
		ds = append(ds, from.simple(fmt.Sprint("body", i), fmt.Sprint("a", i), fmt.Sprint("b", i)))
	}
	from.append(t, ds...)
	text := from.export(t, events.Filter{})
	path := write(t, "all.ndjson", string(text))
	var fresh, ended int64
	for {
		ctx, cancel := context.WithCancel(t.Context())
		im := to.importParams()
		im.Progress = func(n int64) {
			if n > 500*ended {
				cancel()
			}
		}
		done, err := archive.Import(ctx, im, path)
		cancel()
		if fresh += done.Added; err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if ended++; ended > 10 {
			t.Fatal("it does not come to an end")
		}
	}
	if diff := cmp.Diff(from.log(t), to.log(t)); diff != "" || fresh != 1800 || ended < 3 {
		t.Errorf("%d new after %d ends\n%s", fresh, ended, diff)
	}
}

// A dry run reports what the import does afterwards, and writes nothing.
func TestImport_dryRun_writesNothing(t *testing.T) {
	t.Parallel()
	from, to := setup(t), setup(t)
	from.register(t)
	to.register(t)
	for i := range 5 {
		from.append(t, from.simple("body", fmt.Sprint("k", i)))
	}
	same, other := to.simple("body", "k1"), to.simple("other", "k2")
	to.append(t, same, other)
	text := append(from.export(t, events.Filter{}), "no line\n"...)
	im := to.importParams()
	reported := 0
	im.Report = func(where string, why error) {
		reported++
		if !strings.HasSuffix(where, "x.ndjson:6") || !strings.Contains(why.Error(), "invalid JSON") {
			t.Errorf("%s: %v", where, why)
		}
	}
	want := archive.ImportResult{Read: 6, Added: 3, Duplicate: 1, Conflict: 1, Bad: 1}
	before := to.log(t)
	dry := im
	dry.DryRun, dry.Pool = true, to.operator
	to.wantImport(t, dry, "x.ndjson", text, want)
	testkit.Equal(t, "a dry run wrote", before, to.log(t))
	const conflictsSQL = `SELECT event_id || convert_from(body, 'UTF8') FROM event_conflicts`
	to.wantRows(t, conflictsSQL)
	to.wantImport(t, im, "x.ndjson", text, want)
	to.wantRows(t, conflictsSQL, "k2body")
	empty := setup(t) // its sources have no numbers yet
	dry = empty.importParams()
	dry.DryRun, dry.Pool, dry.Report = true, empty.operator, im.Report
	empty.wantImport(t, dry, "x.ndjson", text, archive.ImportResult{Read: 6, Added: 5, Bad: 1})
	if empty.wantRows(t, `SELECT name FROM sources`); reported != 3 {
		t.Errorf("%d reports", reported)
	}
}

// Bad entries are reported with their lines and set aside unchanged, and the others are imported.
// Once corrected, they can be imported from the file of bad entries.
func TestImport_badLines_areSetAside(t *testing.T) {
	t.Parallel()
	from, to := setup(t), setup(t)
	from.register(t)
	for i := range 8 {
		from.append(t, from.simple("body", fmt.Sprint("k", i)))
	}
	lines := strings.SplitAfter(string(from.export(t, events.Filter{})), "\n")
	// only PostgreSQL rejects this one
	lines[1] = strings.Replace(lines[1], `"A": "b"`, `"A": "\u0000"`, 1)
	lines[3] = strings.Replace(lines[3], `2026-09-21T`, `2126-09-21T`, 1)         // received in a hundred years
	lines[4] = strings.Replace(lines[4], `"provider":"sim"`, `"provider":"x"`, 1) // of another provider
	// cut in the middle, and the next line with it
	lines[5] = lines[5][:40]
	lines[7] = strings.TrimSuffix(strings.Replace(lines[7], `"body":`, `"b":`, 1), "\n") // the last one has no line end
	path := write(t, "x.ndjson", strings.Join(lines, ""))
	im := to.importParams()
	reported := map[string]string{}
	im.Report = func(where string, why error) { reported[strings.TrimPrefix(where, path)] = why.Error() }
	done, err := archive.Import(t.Context(), im, path)
	if want := (archive.ImportResult{Read: 7, Added: 2, Bad: 5}); err != nil || done != want {
		t.Errorf("%+v, %v", done, err)
	}
	for where, why := range map[string]string{":2": "Unicode", ":4": "in the future", ":5": "provider x",
		":6": "invalid JSON", ":7": "missing"} {
		if !strings.Contains(reported[where], why) {
			t.Errorf("line %s: %q, want %q", where, reported[where], why)
		}
	}
	bad, err := os.ReadFile(path + ".bad")
	testkit.Must(t, err)
	for _, line := range []string{lines[1], lines[3], lines[4], lines[5] + lines[6], lines[7] + "\n"} {
		if !strings.Contains(string(bad), line) {
			t.Errorf("not set aside: %s", line)
		}
	}
	corrected := strings.NewReplacer(`\u0000`, "b", "2126-", "2026-", `"provider":"x"`, `"provider":"sim"`, `"b":`,
		`"body":`).Replace(string(bad))
	im.Report = func(string, error) {}
	to.wantImport(t, im, "x.ndjson.bad", []byte(corrected), archive.ImportResult{Read: 5, Added: 4, Bad: 1})
	im.BadPath = path
	if _, err := archive.Import(t.Context(), im, path); err == nil ||
		!strings.Contains(err.Error(), "name another file") {
		t.Errorf("a file of bad lines that is read: %v", err)
	}
}

// The configuration or the log must have a source before anything is imported into it.
func TestImport_sources_areResolved(t *testing.T) {
	t.Parallel()
	from, to := setup(t), setup(t)
	from.register(t)
	from.append(t, from.simple("body", "k"))
	text := from.export(t, events.Filter{})
	im := to.importParams()
	im.Sources = nil
	if _, err := to.importText(t, im, "x.ndjson", text); err == nil ||
		!strings.Contains(err.Error(), `x.ndjson:1: source "sim" is not configured here`) {
		t.Errorf("an unknown source: %v", err)
	}
	to.register(t)
	to.wantImport(t, im, "x.ndjson", text, archive.ImportResult{Read: 1, Added: 1}) // the log has it
	im = to.importParams()
	im.Target, im.Sources["other"] = "other", im.Sources["sim"]
	to.wantImport(t, im, "x.ndjson", text, archive.ImportResult{Read: 1, Added: 1}) // another source, another key
	to.wantRows(t, `SELECT s.name FROM events e JOIN sources s ON s.number = e.source ORDER BY 1`, "other", "sim")
	for what, c := range map[string]struct {
		change func(*archive.ImportParams)
		want   string
	}{
		"headers":      {func(im *archive.ImportParams) { im.Header = http.Header{"A": {"b"}} }, "leave out --header"},
		"a bad format": {func(im *archive.ImportParams) { im.Format = "csv" }, "use postern or events"},
		"without source": {func(im *archive.ImportParams) { im.Format, im.Target = archive.Events, "" },
			"name it with --source"},
		"no such source": {func(im *archive.ImportParams) { im.Format, im.Target = archive.Events, "nobody" },
			"is not configured here"},
	} {
		im := to.importParams()
		c.change(&im)
		if _, err := to.importText(t, im, "x.ndjson", text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for text, want := range map[string]string{"what?": "--format", "[\n{}]": "a JSON array",
		"{\n\"object\": \"list\",": "a page of an API", `{"data":[]}`: "a page of an API"} {
		if _, err := to.importText(t, to.importParams(), "x", []byte(text)); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// stripes returns n Stripe events as its API lists them.
func (in *instance) stripes(t *testing.T, n int) (bodies []json.RawMessage) {
	t.Helper()
	for _, e := range in.endpoints {
		if e.Source.Name != "stripe" {
			continue
		}
		for i := range n {
			s, err := e.Provider.MakeVariant(e.Provider.Samples()[0], i+1, time.Unix(1_780_000_000, 0), true)
			testkit.Must(t, err)
			bodies = append(bodies, s.Body)
		}
	}
	return bodies
}

// A provider's own events are read from lines, compressed or not. They get the
// same keys as at the ingest endpoint, and are the same events.
func TestImport_providerFiles_areImported(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		make func(bodies []json.RawMessage) string
	}{
		{"x.ndjson", func(b []json.RawMessage) string {
			return strings.ReplaceAll(lines(b), "\n", "\r\n\n")
		}},
		{"x.ndjson.gz", func(b []json.RawMessage) string {
			var out strings.Builder
			w := gzip.NewWriter(&out)
			fmt.Fprint(w, lines(b))
			w.Close()
			return out.String()
		}},
		{"stdin", func(b []json.RawMessage) string {
			w, _ := zstd.NewWriter(nil)
			defer w.Close()
			return string(w.EncodeAll([]byte(lines(b)), nil))
		}},
	} {
		in := setup(t)
		in.register(t)
		bodies := in.stripes(t, 4)
		for _, e := range in.endpoints {
			if e.Source.Name == "stripe" {
				in.append(t, in.ingest(t, e, provider.Sample{Body: bodies[1]}, time.Unix(1_780_000_000, 0)))
			}
		}
		im := in.importParams()
		im.Target = "stripe"
		want := archive.ImportResult{Read: 4, Added: 3, Duplicate: 1}
		if c.name == "stdin" {
			im.Stdin = strings.NewReader(c.make(bodies))
			wantResult(t, c.name, im, want, archive.Stdin)
		} else {
			in.wantImport(t, im, c.name, []byte(c.make(bodies)), want)
		}
		for _, got := range in.db.QueryStrings(t, `SELECT event_type || ' ' || object_type || ' ' ||
			(occurred_at = received_at)
			|| ' ' || (verification->'imported'->>'file') FROM events WHERE origin = 'import'`) {
			if !strings.HasSuffix(got, " true "+c.name) {
				t.Errorf("%s: %s", c.name, got)
			}
		}
		in.apply(t)
		in.db.WantRows(t, 4, "objects")
	}
}

func compact(b []byte) string {
	var v any
	_ = json.Unmarshal(b, &v)
	out, _ := json.Marshal(v)
	return string(out)
}

// lines returns the bodies as one line each.
func lines(bodies []json.RawMessage) (text string) {
	for _, one := range bodies {
		text += compact(one) + "\n"
	}
	return text
}

// A body is stored with its exact bytes. An unreadable line does not prevent reading the others.
func TestImport_lines_keepBytes(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im := in.importParams()
	im.Target = "stripe"
	var bad []string
	im.Report = func(where string, why error) {
		bad = append(bad, where[strings.LastIndex(where, ":"):]+" "+why.Error())
	}
	const exact = `{ "id" : "evt_1",  "object":"event", "type":"a.b\u0041", "x":"]}\"," }`
	text := " " + exact + " \n\n {\"broken\": tru}\n 17\n " +
		"{\"id\":\"evt_2\",\"object\":\"event\",\"type\":\"t\"}\n {\"id\":"
	in.wantImport(t, im, "x.json", []byte(text), archive.ImportResult{Read: 5, Added: 2, Bad: 3})
	in.wantRows(t, `SELECT convert_from(body, 'UTF8') FROM events WHERE event_id = 'evt_1'`, exact)
	want := []string{":3 invalid JSON", ":4 ", ":6 invalid JSON"}
	for i, text := range want {
		if len(bad) != len(want) || !strings.HasPrefix(bad[i], text) {
			t.Errorf("bad %q, want %q", bad, want)
			break
		}
	}
}

// The headers of all deliveries identify the events, and the allowed ones are stored.
func TestImport_header_appliesToAllDeliveries(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im := in.importInto("github", "X-Github-Event", "issues", "X-Secret", "no")
	text := "{\"action\":\"opened\",\"issue\":{\"id\":1,\"number\":1}}\n" +
		"{\"action\":\"closed\",\"issue\":{\"id\":2,\"number\":2}}\n"
	for _, want := range []archive.ImportResult{{Read: 2, Added: 2}, {Read: 2, Duplicate: 2}} {
		in.wantImport(t, im, "x.ndjson", []byte(text), want)
	}
	in.wantRows(t, `SELECT event_type || ' ' || headers::text FROM events ORDER BY 1`,
		`issues.closed {"X-Github-Event": "issues"}`, `issues.opened {"X-Github-Event": "issues"}`)
}

// A version may not be far ahead of the receipt, and an event's own time is not its receipt. An
// event of the year 2099 therefore blocks no later events.
func TestImport_receivedAt_isChosen(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im := in.importParams()
	im.Target = "stripe"
	far := strings.Replace(compact(in.stripes(t, 1)[0]), "1780000000", "4070908800", -1)
	in.wantImport(t, im, "x.ndjson", []byte(far), archive.ImportResult{Read: 1, Added: 1})
	in.wantRows(t, `SELECT (received_at <= now())::text || (occurred_at > now())::text FROM events`, "truetrue")
	in.register(t)
	in.apply(t)
	in.wantRows(t, `SELECT status FROM outcomes`, "dead")
	im.ReceivedAt = time.UnixMicro(1_785_000_000_000_000)
	in.wantImport(t, im, "y.ndjson", []byte(compact(in.stripes(t, 2)[1])), archive.ImportResult{Read: 1, Added: 1})
	in.db.WantRows(t, 1, `events WHERE received_at = to_timestamp(1785000000)`)
}
