package hmac_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/senders.md and testdata/samples.golden")

const pageIntro = `<!-- Generated from internal/provider/hmac/testdata: go test ./internal/provider/hmac -update. Do not edit. -->

# Senders in YAML

How a source with ` + "`provider: hmac`" + ` is written for %d senders; [configuration.md](configuration.md) explains the settings. Each of these is tested
with a delivery whose signature was made by other means. Name the source as you like, and the variable with its secret too.

Objects are mirrored only where the sender's events carry their whole state with a version or a time; where they do not, an object is a reason
to look. Leave ` + "`objects`" + ` out if you want none of that. ` + "`still: true`" + ` stands where we do not know that the version changes with every change.

`

// page is docs/senders.md.
func page(t *testing.T) string {
	t.Helper()
	all := names(t)
	var out strings.Builder
	fmt.Fprintf(&out, pageIntro, len(all))
	for _, name := range all {
		text, err := os.ReadFile(filepath.Join("testdata", "senders", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		title, rest, _ := strings.Cut(strings.TrimPrefix(string(text), "# "), "\n")
		fmt.Fprintf(&out, "## %s\n\n", title)
		for strings.HasPrefix(rest, "# ") {
			var line string
			line, rest, _ = strings.Cut(rest[2:], "\n")
			fmt.Fprintf(&out, "%s\n", line)
		}
		fmt.Fprintf(&out, "\n```yaml\n%s```\n\n", rest)
	}
	return strings.TrimRight(out.String(), "\n") + "\n"
}

func TestPageOfSendersIsCurrent(t *testing.T) {
	t.Parallel()
	const file = "../../../docs/senders.md"
	want := page(t)
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(have)); diff != "" {
		t.Errorf("docs/senders.md is not current: run go test ./internal/provider/hmac -update\n%s", diff)
	}
}
