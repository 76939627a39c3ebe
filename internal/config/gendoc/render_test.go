package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
)

// inModule returns paths below the module's root.
func inModule(paths []string) []string {
	out := make([]string, len(paths))
	for i, path := range paths {
		out[i] = filepath.Join("..", "..", "..", path)
	}
	return out
}

func TestRender_page_isCurrent(t *testing.T) {
	t.Parallel()
	want, err := render(inModule(sources)...)
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile(inModule([]string{page})[0])
	if err != nil || string(have) != string(want) {
		t.Fatalf("%s is not current (%v): run go run ./internal/config/gendoc", page, err)
	}
}

func TestRender_everySetting_isDescribed(t *testing.T) {
	t.Parallel()
	text, err := render(inModule(sources)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"`ingest.tls.cert`<br>`POSTERN_INGEST_TLS_CERT`", "`processor.republisher.min_age`",
		"POSTERN_SOURCES_NAME_SECRETS_N_FILE`", "| `4MiB` |",
		"POSTERN_SOURCES_NAME_SCHEME_KEY_FORM`", "`sources.NAME.objects[].version.may_not_advance`",
		"`sources.NAME.api.objects.TYPE.list.next.field`<br>`POSTERN_SOURCES_NAME_API_OBJECTS_TYPE_LIST_NEXT_FIELD`",
		"`sources.NAME.handshake.challenge.token.env`"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is missing", want)
		}
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		rows++
		if cells := strings.Split(line, " | "); len(cells) != 3 || len(cells[2]) < 15 {
			t.Errorf("not described: %s", line)
		}
	}
	if rows < 50 {
		t.Errorf("only %d settings", rows)
	}
}

func TestRender_fileOfASectionMissing_isError(t *testing.T) {
	t.Parallel()
	if _, err := render(filepath.Join("..", "config.go")); err == nil || !strings.Contains(err.Error(), "no settings") {
		t.Errorf("error %v, want one that names the section", err)
	}
}

// Every setting that limits deliveries is in the table of limits, with the response above it.
func TestRender_everyLimit_isListed(t *testing.T) {
	t.Parallel()
	groups := map[string]any{"ingest": config.Ingest{}, "ingest.spool": config.Spool{},
		"rejections": config.Rejections{}, "sources.NAME.rate_limit": config.RateLimit{}}
	for path, group := range groups {
		of := reflect.TypeOf(group)
		for i := range of.NumField() {
			field := of.Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")
			bounds := field.Type.Kind() == reflect.Int || field.Type.Kind() == reflect.Int64
			if bounds && aboveLimit[path+"."+name] == "" {
				t.Errorf("%s.%s is a limit: describe the response above it in aboveLimit", path, name)
			}
		}
	}
	text, err := render(inModule(sources)...)
	if err != nil {
		t.Fatal(err)
	}
	for path := range aboveLimit {
		if !strings.Contains(string(text), "\n| `"+path+"` |") {
			t.Errorf("aboveLimit has %s, which is not a setting", path)
		}
	}
	for _, want := range []string{"| `ingest.max_body_bytes` | `4MiB` | 413",
		"| `ingest.spool.max_bytes` | `1GiB` | 503", "| `sources.NAME.rate_limit.burst` | `per_second` | 429",
		"| `database.max_connections` | `16` |"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is missing", want)
		}
	}
}
