package documents_test

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"unicode"

	"github.com/google/go-cmp/cmp"
)

var (
	inlineCode = regexp.MustCompile("(``[^\n]*?``|`[^`\n]*`)")
	linkTarget = regexp.MustCompile(`\]\(\s*<?([^\s()<>]+)>?(\s+"[^"]*")?\s*\)|(?m)^\[[^\]]+\]: +(\S+)`)
	markup     = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)|[*` + "`" + `]`)
	anchorTag  = regexp.MustCompile(`<\w+ [^>]*\b(?:id|name)="([^"]+)"`)
)

// link is a link in a page: to a file or a folder, relative to the repository, and perhaps to an
// anchor in it.
type link struct {
	line         int
	file, anchor string
}

// prose returns a page without its blocks of code, with the same number of lines.
func prose(text string) string {
	lines := strings.Split(text, "\n")
	inside := false
	for i, line := range lines {
		isFence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if isFence {
			inside = !inside
		}
		if isFence || inside || strings.HasPrefix(line, "    ") {
			lines[i] = ""
		}
	}
	return strings.Join(lines, "\n")
}

// linksOf returns the links of a page to files of the repository.
func linksOf(page, text string) (links []link) {
	text = inlineCode.ReplaceAllString(prose(text), "")
	for _, at := range linkTarget.FindAllStringSubmatchIndex(text, -1) {
		start, end := at[2], at[3]
		if start < 0 {
			start, end = at[6], at[7]
		}
		target := text[start:end]
		if strings.Contains(target, ":") { // https://, mailto:
			continue
		}
		l := link{line: 1 + strings.Count(text[:start], "\n"), file: page}
		file, anchor, _ := strings.Cut(target, "#")
		if l.anchor = anchor; file != "" {
			l.file = path.Join(path.Dir(page), file)
		}
		links = append(links, l)
	}
	return links
}

// anchors returns the anchors of a page, as GitHub makes them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for line := range strings.Lines(prose(text)) {
		title := strings.TrimLeft(line, "#")
		if level := len(line) - len(title); level == 0 || level > 6 || !strings.HasPrefix(title, " ") {
			continue
		}
		var anchor strings.Builder
		for _, r := range strings.ToLower(strings.TrimSpace(markup.ReplaceAllString(title, "$1"))) {
			switch {
			case r == ' ':
				anchor.WriteRune('-')
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				anchor.WriteRune(r)
			}
		}
		name := anchor.String()
		for n := 1; found[name]; n++ {
			name = anchor.String() + "-" + strconv.Itoa(n)
		}
		found[name] = true
	}
	for _, m := range anchorTag.FindAllStringSubmatch(text, -1) {
		found[m[1]] = true
	}
	return found
}

// markdown reads the pages of a repository, by their paths.
func markdown(repository fs.FS, names []string) (map[string]string, error) {
	texts := map[string]string{}
	for _, name := range names {
		text, err := fs.ReadFile(repository, name)
		if err != nil {
			return nil, err
		}
		texts[name] = string(text)
	}
	return texts, nil
}

// checkLinks returns the links of pages that lead to no file, or to no anchor of a page.
func checkLinks(repository fs.FS, texts map[string]string) (problems []string) {
	for _, page := range slices.Sorted(maps.Keys(texts)) {
		for _, l := range linksOf(page, texts[page]) {
			at := fmt.Sprintf("%s:%d: ", page, l.line)
			if _, err := fs.Stat(repository, l.file); err != nil {
				problems = append(problems, at+"there is no "+l.file)
			} else if text, ok := texts[l.file]; l.anchor != "" && ok && !anchors(text)[l.anchor] {
				problems = append(problems, at+l.file+" has no heading #"+l.anchor)
			}
		}
	}
	return problems
}

// checkStarts returns the pages below docs/ that do not begin with a title and a paragraph.
func checkStarts(texts map[string]string) (problems []string) {
	comment := regexp.MustCompile(`(?s)^(<!--.*?-->\s*)*`)
	start := regexp.MustCompile(`^# \S.*\n\n([^\s#|\->!` + "`" + `<*]|\*\S)`)
	for _, page := range slices.Sorted(maps.Keys(texts)) {
		text := comment.ReplaceAllString(texts[page], "")
		if strings.HasPrefix(page, "docs/") && !start.MatchString(text) {
			problems = append(problems, page+" does not begin with a title and a paragraph")
		}
	}
	return problems
}

// checkReachable returns the pages below docs/ to which neither the README, nor the map of the
// documents, nor a linked list of their folder leads.
func checkReachable(texts map[string]string) (problems []string) {
	linked := map[string]bool{}
	queue := []string{"README.md", "docs/README.md"}
	for len(queue) > 0 {
		page := queue[0]
		queue = queue[1:]
		for _, l := range linksOf(page, texts[page]) {
			target := l.file
			if _, isPage := texts[target]; !isPage {
				target = path.Join(target, "README.md")
			}
			if _, isPage := texts[target]; !isPage { // a folder without a list: GitHub lists it
				linked[l.file+"/"] = true
			}
			if path.Base(target) == "README.md" && !linked[target] {
				queue = append(queue, target)
			}
			linked[target] = true
		}
	}
	for _, page := range slices.Sorted(maps.Keys(texts)) {
		if strings.HasPrefix(page, "docs/") && page != "docs/README.md" && !linked[page] &&
			!linked[path.Dir(page)+"/"] {
			problems = append(problems, "no list of pages links to "+page)
		}
	}
	return problems
}

// Links lead to files and headings, each page begins with a title and a paragraph, and each can be
// found from the README.
func TestPages_linksAndStarts(t *testing.T) {
	t.Parallel()
	repository := os.DirFS(root)
	texts, err := markdown(repository, pages(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range slices.Concat(checkLinks(repository, texts), checkStarts(texts), checkReachable(texts)) {
		t.Error(problem)
	}
}

func TestCheckLinksStartsReachable_fixture(t *testing.T) {
	t.Parallel()
	repository := fstest.MapFS{
		"README.md": {Data: []byte("# A\n\n[docs](docs/README.md), [one](docs/one.md#two--three), " +
			"![a\nb](docs/a.svg)\n[gone](docs/gone.md) `[code](x.md)` <https://a.b> [web](https://a.b/x.md)\n\n```\n[block](y.md)\n```\n")},
		"docs/README.md": {Data: []byte("# Map\n\nText [folder](sub/) [open](open) [self](#map) [bad](#none).\n")},
		"docs/one.md": {Data: []byte("<!-- generated -->\n\n# One\n\nText.\n\n## Two & `three`\n\n## Two & three\n\n" +
			"[again](#two--three-1)\n\n[ref]: sub/none.md \"x\"\n<a id=\"x\"></a> [x](one.md#x)\n")},
		"docs/a.svg":         {},
		"docs/lost.md":       {Data: []byte("# Lost\n\n- a list\n")},
		"docs/sub/README.md": {Data: []byte("# Sub\n\nText [b](b.md).\n")},
		"docs/sub/b.md":      {Data: []byte("Text\n\n# B\n")},
		"docs/sub/c.md":      {Data: []byte("# C\n\n## D\n")},
		"docs/open/d.md":     {Data: []byte("# D\n\nText.\n")},
	}
	texts, err := markdown(repository, []string{"README.md", "docs/README.md", "docs/one.md", "docs/lost.md",
		"docs/sub/README.md", "docs/sub/b.md", "docs/sub/c.md", "docs/open/d.md"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"README.md:5: there is no docs/gone.md",
		"docs/README.md:3: docs/README.md has no heading #none",
		"docs/one.md:13: there is no docs/sub/none.md",
		"docs/lost.md does not begin with a title and a paragraph",
		"docs/sub/b.md does not begin with a title and a paragraph",
		"docs/sub/c.md does not begin with a title and a paragraph",
		"no list of pages links to docs/lost.md",
		"no list of pages links to docs/sub/c.md",
	}
	got := slices.Concat(checkLinks(repository, texts), checkStarts(texts), checkReachable(texts))
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}
