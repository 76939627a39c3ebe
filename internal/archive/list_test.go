package archive_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/archive"
)

// An object that holds no list is told and set aside: it may be a page under another name, one event, or an API's complaint.
func TestObjectsThatAreNoPages(t *testing.T) {
	t.Parallel()
	in := setup(t)
	for name, c := range map[string]struct {
		text string
		want archive.Imported
		bad  string
	}{
		"another name": {`{"events":[{"id":"evt_1","object":"event","type":"t"}]}` + "\n", archive.Imported{Read: 1, Bad: 1}, `{"events":[{"id":"evt_1","object":"event","type":"t"}]}` + "\n"},
		"one event":    {"\n {\"id\":\"evt_1\", \"data\":\n{\"object\":{}}} \n", archive.Imported{Read: 1, Bad: 1}, "{\"id\":\"evt_1\", \"data\":\n{\"object\":{}}}\n"},
		"a complaint":  {`{"error":{"message":"Invalid API Key"}}`, archive.Imported{Read: 1, Bad: 1}, `{"error":{"message":"Invalid API Key"}}` + "\n"},
		"no data":      {`{"object":"list","data":{"data":[1]}}`, archive.Imported{Read: 1, Bad: 1}, `{"object":"list","data":{"data":[1]}}` + "\n"},
		"nothing":      {`{}`, archive.Imported{Read: 1, Bad: 1}, "{}\n"},
		"beside pages": {`{"data":[]} {"x":1} {"a":"}","data":[{"id":"evt_2","object":"event","type":"t"}]}{"y":{"data":[]}} []`, archive.Imported{Read: 3, New: 1, Bad: 2}, "{\"x\":1}\n{\"y\":{\"data\":[]}}\n"},
		"cut":          {`{"object":"list","url":`, archive.Imported{Read: 1, Bad: 1}, `{"object":"list","url":` + "\n"},
		"empty ones":   {`{"object":"list","data":[]} {"data":null} []`, archive.Imported{}, ""},
	} {
		im := in.order()
		var told []string
		im.Into, im.Format, im.BadPath = "stripe", archive.List, filepath.Join(t.TempDir(), "bad")
		im.Report = func(where string, why error) { told = append(told, where+" "+why.Error()) }
		in.wantImport(t, im, "x.json", []byte(c.text), c.want)
		if bad, err := os.ReadFile(im.BadPath); string(bad) != c.bad || len(told) != int(c.want.Bad) || err != nil && c.bad != "" {
			t.Errorf("%s: set aside %q, told %q, %v", name, bad, told, err)
		}
		if name == "one event" && !strings.Contains(told[0], `x.json:2 an object without a list under "data"`) {
			t.Errorf("told %q", told)
		}
	}
}

// Whoever has only some of an API's pages is told: the last says that there are more.
func TestPagesThatAreNotAll(t *testing.T) {
	t.Parallel()
	in := setup(t)
	im := in.order()
	im.Into = "stripe"
	page := func(id string, more any) string {
		return fmt.Sprintf(`{"object":"list","data":[{"id":"evt_%s","object":"event","type":"t"}],"has_more":%v}`, id, more)
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
