package archive_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/archive"
)

// put writes the files of a folder.
func put(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// What no signature vouches for is no event where its body cannot be the sender's, or where nothing tells what it is: it would be ignored or dead for ever.
func TestWhatIsNoEventOfTheSender(t *testing.T) {
	t.Parallel()
	in := setup(t)
	typeless := in.declared(t, "{key: '{json:id}'}")
	forms := in.declared(t, "{body: [json, form], key: '{json:id}', type: '{json:t}'}")
	for what, c := range map[string]struct {
		im   archive.Importing
		path string
		want archive.Imported
		told []string
	}{
		"objects that are no events": {in.into("stripe"), write(t, "x.json", `[{"id":"cus_1","object":"customer","created":1780000000}, {"id":"pm_1","object":"payment_method","type":"card"}, {"id":"evt_1","object":"event"},
			{"id":"evt_2","type":"t"}, {"id":"evt_3","object":"v2.core.event","type":"t"}, 17]`), archive.Imported{Read: 6, New: 2, Bad: 4},
			[]string{`a "customer", not an event`, `a "payment_method", not an event`, "cannot tell what event", "a JSON number, not an object"}},
		"other files in a folder": {in.into("github", "X-Github-Event", "issues"), put(t, map[string]string{"1 README.md": "# not a delivery", "2 cut.json": `{"action":"opened","issue":{"id":1,`, "3": "[]",
			"4": "payload=%7B%7", "5": "payload=%7B%22action%22%3A%22opened%22%7D", "6": `{"action":"opened"}`}), archive.Imported{Read: 6, New: 2, Bad: 4},
			[]string{"the body is not JSON: no value begins here at byte 0", "the body is not JSON: ", "a JSON array, not an object", "begins like a form and is none"}},
		"without its header": {in.into("github", "X-Github-Delivery", "d1"), put(t, map[string]string{"1": `{"action":"opened"}`}), archive.Imported{Read: 1, Bad: 1}, []string{"give it with --header"}},
		"a type in the map": {in.mapped("hmac", "event_id=id,event_type=what,body=body"), write(t, "x.csv", "id,what,body\n1,a,{}\n2,,{}\n3,unknown,{}\n4,a,nothing\n"), archive.Imported{Read: 4, New: 2, Bad: 2},
			[]string{"cannot tell what event", "the body is not JSON"}},
		"a sender of no types":    {typeless, write(t, "x.ndjson", "{\"id\":\"a\"}\n{\"b\":1}\n"), archive.Imported{Read: 2, New: 1, Bad: 1}, []string{"cannot tell what event"}},
		"a sender of forms":       {forms, put(t, map[string]string{"1": "id=f1&t=x", "2": "neither", "3": `{"id":"f2","t":"x"}`}), archive.Imported{Read: 3, New: 2, Bad: 1}, []string{"the body is not JSON"}},
		"a delivery of many":      {in.into("hubspot"), put(t, map[string]string{"1": `[{"eventId":1,"subscriptionType":"contact.creation","objectId":1},{"eventId":2}]`}), archive.Imported{Read: 1, New: 2}, nil},
		"a delivery of something": {in.into("hubspot"), put(t, map[string]string{"1": `{"results":[]}`}), archive.Imported{Read: 1, Bad: 1}, []string{"no list of events"}},
	} {
		var told []string
		c.im.Report = func(_ string, why error) { told = append(told, why.Error()) }
		wantDone(t, what, c.im, c.path, c.want)
		for i, text := range c.told {
			if len(told) != len(c.told) || !strings.Contains(told[i], text) || strings.Contains(told[i], "signature") {
				t.Errorf("%s: told %q, want %q", what, told, c.told)
				break
			}
		}
	}
}

// Whatever a provider sends is an event of its own from a file, too.
func TestAllSamplesAreImported(t *testing.T) {
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
		im := in.into(e.Source.Name)
		im.Report = func(where string, why error) { t.Errorf("%s: %s: %v", e.Source.Name, where, why) }
		done, err := archive.Import(t.Context(), im, put(t, files))
		if err != nil || done.Read != int64(len(files)/2) || done.New < done.Read {
			t.Errorf("%s: %+v, %v", e.Source.Name, done, err)
		}
	}
}

// into is an import into a source, with headers that all deliveries have.
func (in *instance) into(source string, headers ...string) archive.Importing {
	im := in.order()
	im.Into, im.Header = source, http.Header{}
	for i := 0; i < len(headers); i += 2 {
		im.Header.Set(headers[i], headers[i+1])
	}
	return im
}

// mapped is an import of rows.
func (in *instance) mapped(source, columns string) archive.Importing {
	im := in.into(source)
	im.Map = map[string]string{}
	for pair := range strings.SplitSeq(columns, ",") {
		field, column, _ := strings.Cut(pair, "=")
		im.Map[field] = column
	}
	return im
}
