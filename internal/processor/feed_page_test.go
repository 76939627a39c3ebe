package processor

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// docs/reference/feeds.md describes each field of a change, and each header that package stream
// sets.
func TestFeedsPage_fieldsAndHeaders_areDescribed(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/reference/feeds.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for f := range reflect.TypeFor[envelope]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !strings.Contains(page, "`"+name+"`") && !strings.Contains(page, `"`+name+`"`) {
			t.Errorf("the page does not describe the field %s", name)
		}
	}
	files, err := filepath.Glob("../stream/*.go")
	if err != nil {
		t.Fatal(err)
	}
	headers := map[string]bool{}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		for _, m := range regexp.MustCompile(`"(Postern-[A-Z][A-Za-z-]+)"`).FindAllStringSubmatch(string(source), -1) {
			headers[m[1]] = true
		}
	}
	if len(headers) < 15 {
		t.Errorf("package stream sets %d headers", len(headers))
	}
	for name := range headers {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("the page does not describe the header %s", name)
		}
	}
}
