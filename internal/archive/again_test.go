package archive_test

import (
	"bytes"
	"errors"
	"fmt"
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

// everyDelivery is an import into a source whose events nothing names, and each of whose deliveries is one.
func (in *instance) everyDelivery(t *testing.T) archive.Importing {
	t.Helper()
	return in.declared(t, "{type: '{json:t}', every_delivery: true}")
}

// declared is an import into a source whose events are named so.
func (in *instance) declared(t *testing.T, events string) archive.Importing {
	t.Helper()
	c, err := config.Parse([]byte("database: {url: postgres://x/y}\nsources: {plain: {provider: hmac, secrets: [{name: a, value: abcdefghijklmnopqrstuvwxyz012345}], scheme: {header: X-Sig}, events: "+events+"}}\n"), os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	im, e := in.order(), c.Endpoints()[0]
	im.Into, im.Sources["plain"] = "plain", archive.Source{Provider: e.Provider, Config: e.Source}
	return im
}

// write makes a file in a folder of its own.
func write(t *testing.T, name, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func wantDone(t *testing.T, what string, im archive.Importing, path string, want archive.Imported) {
	t.Helper()
	done, err := archive.Import(t.Context(), im, path)
	if diff := cmp.Diff(want, done); err != nil || diff != "" {
		t.Errorf("%s: %v\n%s", what, err, diff)
	}
}

// What nothing names is as many events as its file has entries, and no more where that is read again: copied, touched, compressed, grown, or from
// standard input at another time.
func TestWhatNothingNamesIsImportedAgain(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im := in.everyDelivery(t)
	im.Report = func(where string, why error) {
		if !strings.Contains(where, ":3") || !strings.Contains(why.Error(), "cannot tell what event") {
			t.Errorf("%s: %v", where, why)
		}
	}
	const text = "{\"t\":\"ping\"}\n{\"t\":\"ping\"}\n{\"u\":1}\n{\"t\":\"ping\"}"
	fresh, again := archive.Imported{Read: 4, New: 3, Bad: 1}, archive.Imported{Read: 4, Duplicate: 3, Bad: 1}
	path := write(t, "x.ndjson", text)
	wantDone(t, "the file", im, path, fresh)
	if err := os.Chtimes(path, time.Now(), time.Now().Add(-time.Hour)); err != nil {
		t.Fatal(err)
	}
	wantDone(t, "touched", im, path, again)
	wantDone(t, "copied", im, write(t, "x.ndjson", text), again)
	wantDone(t, "grown", im, write(t, "x.ndjson", text+"\n{\"t\":\"ping\"}\n"), archive.Imported{Read: 5, New: 1, Duplicate: 3, Bad: 1})
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write([]byte(text)); errors.Join(err, w.Close()) != nil {
		t.Fatal(err)
	}
	wantDone(t, "compressed", im, write(t, "x.ndjson.gz", packed.String()), again)
	wantDone(t, "of another name", im, write(t, "y.ndjson", text), fresh)
	for i, want := range []archive.Imported{fresh, again} {
		im.Stdin, im.Now = strings.NewReader(text), im.Now.Add(time.Duration(i)*time.Hour)
		wantDone(t, "standard input", im, archive.Stdin, want)
	}
	im.Stdin, im.Name = strings.NewReader(text), "z"
	wantDone(t, "with a name", im, archive.Stdin, fresh)
}

// The files of a folder are told apart by their names and what they hold, whatever else comes into the folder.
func TestFolderIsImportedAgain(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im, dir := in.everyDelivery(t), t.TempDir()
	put := func(names ...string) {
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(`{"t":"ping"}`), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	put("b", "d")
	wantDone(t, "first", im, dir, archive.Imported{Read: 2, New: 2})
	put("a", "b", "c", "d")
	wantDone(t, "again", im, dir, archive.Imported{Read: 4, New: 2, Duplicate: 2})
}

// Rows that no column names are named by file and row, and what the file holds decides: other people's rows are neither duplicates nor conflicts.
func TestRowsOfFilesOfOneName(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im := in.order()
	im.Into, im.Map = "hmac", map[string]string{"event_type": "what", "object_id": "nr"}
	const january, february = "what,nr,json\norder.made,1,{}\norder.made,2,{}\n", "what,nr,json\norder.made,3,{}\norder.made,4,{}\n"
	fresh, again := archive.Imported{Read: 2, New: 2}, archive.Imported{Read: 2, Duplicate: 2}
	for _, c := range []struct {
		text string
		want archive.Imported
	}{{january, fresh}, {february, fresh}, {january, again}, {february, again}} {
		wantDone(t, c.text, im, write(t, "orders.csv", c.text), c.want)
	}
	wantDone(t, "grown", im, write(t, "orders.csv", january+"order.made,2,{}\n"), archive.Imported{Read: 3, New: 1, Duplicate: 2})
	wantDone(t, "another name", im, write(t, "shop2.csv", january), fresh)

	im.Format, im.Stdin = archive.CSV, strings.NewReader(january)
	if done, err := archive.Import(t.Context(), im, archive.Stdin); err == nil || !strings.Contains(err.Error(), "--name") || done.New != 0 {
		t.Errorf("standard input has no name: %+v, %v", done, err)
	}
	im.Name = "orders.csv"
	for _, c := range []struct {
		text string
		want archive.Imported
	}{{january, again}, {"what,nr,json\norder.made,5,{}\n", archive.Imported{Read: 1, New: 1}}} {
		im.Stdin = strings.NewReader(c.text)
		wantDone(t, "standard input", im, archive.Stdin, c.want)
	}

	im.Map = map[string]string{"event_type": "what", "body": "json"}
	wantDone(t, "another map", im, write(t, "orders.csv", january), archive.Imported{Read: 2, Conflict: 2, MadeConflict: 2})
}

// What is set aside is written over nothing: an import that is run again, or was ended while it wrote, goes on behind what it finds of its own.
func TestBadEntriesAreWrittenOverNothing(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im := in.everyDelivery(t)
	path := write(t, "x.ndjson", "{\"t\":\"ping\"}\nbroken\n{\"t\":\"pong\"}\nbroken too")
	const whole = "broken\nbroken too\n"
	for i, found := range []string{"", "bro", "broken\n", "broken\nbroken too", whole, whole + "of an earlier run\n"} {
		im.BadPath = write(t, "set aside", found)
		if i == 0 {
			im.BadPath += " for the first time"
		}
		if done, err := archive.Import(t.Context(), im, path); err != nil || done.Bad != 2 {
			t.Errorf("%q: %+v, %v", found, done, err)
		}
		if got, err := os.ReadFile(im.BadPath); err != nil || string(got) != whole && string(got) != found || len(got) < len(found) {
			t.Errorf("%q became %q, %v", found, got, err)
		}
	}
	for _, found := range []string{"precious\n", "broken\nbroken 2\n"} {
		im.BadPath = write(t, "precious", found)
		if _, err := archive.Import(t.Context(), im, path); !errors.Is(err, archive.ErrExists) || !strings.Contains(err.Error(), "--bad") {
			t.Errorf("%q: %v", found, err)
		}
		if got, err := os.ReadFile(im.BadPath); err != nil || string(got) != found {
			t.Errorf("%q became %q, %v", found, got, err)
		}
	}
}

// A dry run counts as the import does after it: an event that the files have twice, however far apart and in whichever file, would be new once.
func TestDryRunCountsTwinsOnce(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im := in.order()
	im.Into = "stripe"
	var text strings.Builder
	for _, kind := range []string{"a", "a", "b"} { // each more than a batch, and the last in conflict with the first
		for i := range 600 {
			fmt.Fprintf(&text, "{\"id\":\"evt_%d\",\"object\":\"event\",\"type\":\"%s\"}\n", i, kind)
		}
	}
	one, two := write(t, "x.ndjson", text.String()), write(t, "y.ndjson", text.String())
	want := archive.Imported{Read: 3600, New: 600, Duplicate: 1800, Conflict: 1200}
	few := im
	few.DryRun = true
	few.Remember(500)
	atMost := archive.Imported{Read: 3600, New: 1100, Duplicate: 1500, Conflict: 1000, AtMost: true}
	for _, c := range []struct {
		what string
		im   archive.Importing
		dry  bool
		want archive.Imported
	}{{"dry", im, true, want}, {"few", few, true, atMost}, {"import", im, false, want}} {
		c.im.DryRun = c.dry
		got, err := archive.Import(t.Context(), c.im, one, two)
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", c.what, err, diff)
		}
	}
}

// Sources that have no numbers yet are told apart: a key is one of its source's.
func TestDryRunTellsNewSourcesApart(t *testing.T) {
	t.Parallel()
	from, to := setup(t), setup(t)
	from.register(t)
	for _, source := range []string{"sim", "hmac"} {
		d := from.simple("body", "k1", "k2")
		d.Source = from.known.Number[source]
		from.append(t, d)
	}
	im := to.order()
	im.DryRun, im.Pool = true, to.operator
	to.wantImport(t, im, "x.ndjson", from.export(t, events.Filter{}), archive.Imported{Read: 4, New: 4})
}
