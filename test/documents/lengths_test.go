package documents_test

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// lengths limits the words of the pages that are written by hand, without their blocks of commands,
// output and settings. A page that is generated from source has no limit.
var lengths = []lengthLimit{
	{glob: "README.md", words: 800},
	{glob: "docs/README.md", words: 300},
	{glob: "docs/tutorial/*.md", words: 2500},
	{glob: "docs/how-to/*.md", words: 14300},
	{glob: "docs/explanation/*.md", words: 8100},
	{glob: "docs/benchmarks.md", words: 2300},
	{glob: "docs/decisions/*.md", words: 4700, pages: 20, each: 250},
	{glob: "docs/reference/feeds.md", words: 1700},
	{glob: "docs/reference/glossary.md", words: 1700},
}

// lengthLimit limits the pages that match a glob: their words in total, their number, and the words
// of each. 0 is no limit.
type lengthLimit struct {
	glob               string
	words, pages, each int
}

// notProse is a part of a page that a program writes, or a block.
var notProse = regexp.MustCompile("(?ms)<!-- results -->.*?<!-- end of results -->|^ *```.*?^ *```$")

// checkLengths returns the limits that pages exceed.
func checkLengths(repository fs.FS, limits []lengthLimit) (problems []string, err error) {
	for _, limit := range limits {
		names, err := fs.Glob(repository, limit.glob)
		if err != nil {
			return nil, err
		}
		texts, err := markdown(repository, names)
		if err != nil {
			return nil, err
		}
		total := 0
		names = slices.DeleteFunc(names, func(name string) bool { // lists of pages
			return name != limit.glob && path.Base(name) == "README.md"
		})
		for _, name := range names {
			words := len(strings.Fields(notProse.ReplaceAllString(texts[name], "")))
			if total += words; limit.each > 0 && words > limit.each {
				problems = append(problems, fmt.Sprintf("%s has %d words, more than %d", name, words, limit.each))
			}
		}
		if total > limit.words {
			problems = append(problems, fmt.Sprintf("%s: %d words, more than %d", limit.glob, total, limit.words))
		}
		if limit.pages > 0 && len(names) > limit.pages {
			problems = append(problems, fmt.Sprintf("%s: %d pages, more than %d", limit.glob, len(names), limit.pages))
		}
		if len(names) == 0 {
			problems = append(problems, limit.glob+": there is no such page")
		}
	}
	return problems, nil
}

func TestPages_lengths(t *testing.T) {
	t.Parallel()
	problems, err := checkLengths(os.DirFS(root), lengths)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range problems {
		t.Error(problem)
	}
}

func TestCheckLengths_fixture(t *testing.T) {
	t.Parallel()
	repository := fstest.MapFS{
		"a.md":   {Data: []byte("one two\n<!-- results -->\nthree\n<!-- end of results -->\n```sh\nfive\n```\nfour\n")},
		"d/b.md": {Data: []byte("one two three")},
		"d/c.md": {Data: []byte("one")},
	}
	got, err := checkLengths(repository, []lengthLimit{{glob: "a.md", words: 3}, {glob: "a.md", words: 2},
		{glob: "d/*.md", words: 3, pages: 1, each: 2}, {glob: "e/*.md", words: 1}})
	want := []string{"a.md: 3 words, more than 2", "d/b.md has 3 words, more than 2", "d/*.md: 4 words, more than 3",
		"d/*.md: 2 pages, more than 1", "e/*.md: there is no such page"}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v; problems (-want +got):\n%s", err, diff)
	}
}

// namedPage matches a page or picture of the documents that source names.
var namedPage = regexp.MustCompile(`\bdocs/[A-Za-z0-9_/.-]+\.(md|svg)\b(#[a-z0-9-]+)?`)

// The pages that messages, comments and scripts name exist.
func TestSources_namedPages_exist(t *testing.T) {
	t.Parallel()
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative := filepath.ToSlash(strings.TrimPrefix(file, root+"/"))
		if d.IsDir() && file != root && (strings.HasPrefix(d.Name(), ".") && d.Name() != ".ci" ||
			slices.Contains([]string{"testdata", "node_modules", "bin", "docs"}, d.Name()) ||
			relative == "bench/reference" || relative == "test/documents") { // frozen; fixtures
			return filepath.SkipDir
		}
		if !slices.Contains([]string{".go", ".sql", ".sh", ".yaml", ".yml", ".mjs", ".py", ".service", ".tsv", ""},
			filepath.Ext(file)) || !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, at := range namedPage.FindAllIndex(text, -1) {
			page, anchor, _ := strings.Cut(string(text[at[0]:at[1]]), "#")
			line := 1 + strings.Count(string(text[:at[0]]), "\n")
			if content, err := os.ReadFile(filepath.Join(root, page)); err != nil {
				t.Errorf("%s:%d: there is no %s", relative, line, page)
			} else if anchor != "" && !anchors(string(content))[anchor] {
				t.Errorf("%s:%d: %s has no heading #%s", relative, line, page, anchor)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
