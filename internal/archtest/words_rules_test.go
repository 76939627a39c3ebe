package archtest

import (
	"bufio"
	"go/scanner"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Lines of code may have codeColumns columns, lines of comments and prose textColumns. A tab counts
// as tabColumns.
const (
	codeColumns = 120
	textColumns = 100
	tabColumns  = 4
)

// retiredTerm is a word, or words that follow each other, that the project does not use any more.
type retiredTerm struct {
	words       []string
	namesOnly   bool     // allowed in prose, where it is an English word
	replacement string   // what to write instead
	allowed     []string // path prefixes of files that may use it
}

// finding is a line that breaks a rule.
type finding struct {
	line    int
	message string
}

// readRetired reads the list of retired terms: lines of term, scope (all or names), replacement and
// allowed path prefixes, separated by tabs.
func readRetired(name string) ([]retiredTerm, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var terms []retiredTerm
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		fields := strings.Split(strings.TrimRight(line, "\n"), "\t")
		fields = append(fields, "", "")
		term := retiredTerm{words: strings.Fields(fields[0]), namesOnly: fields[1] == "names", replacement: fields[2]}
		if fields[3] != "" {
			term.allowed = strings.Split(fields[3], ",")
		}
		terms = append(terms, term)
	}
	return terms, nil
}

// splitWords splits a name or text into lower-case words: at everything that is no letter, and
// where a lower-case letter is followed by an upper-case one.
func splitWords(text string) []string {
	var words []string
	var word []rune
	flush := func() {
		if len(word) > 0 {
			words = append(words, strings.ToLower(string(word)))
			word = word[:0]
		}
	}
	runes := []rune(text)
	for i, r := range runes {
		switch {
		case !unicode.IsLetter(r):
			flush()
			continue
		case unicode.IsUpper(r) && i > 0 && unicode.IsLower(runes[i-1]),
			unicode.IsUpper(r) && i > 0 && i+1 < len(runes) && unicode.IsUpper(runes[i-1]) &&
				unicode.IsLower(runes[i+1]):
			flush()
		}
		word = append(word, r)
	}
	flush()
	return words
}

// isName tells a name (of Go, SQL, a setting, a metric, a flag) from prose.
func isName(token string) bool {
	if strings.ContainsAny(token, "_") {
		return true
	}
	lower := false
	for _, r := range token {
		if unicode.IsUpper(r) && lower {
			return true
		}
		lower = unicode.IsLower(r)
	}
	return false
}

// retiredIn returns the retired terms that a line contains. isCode says that every word of it is
// part of a name.
func retiredIn(line string, isCode bool, terms termIndex, rel string) []string {
	var found []string
	add := func(words []string, inNames bool) {
		for i := range words {
			for _, term := range terms[words[i]] {
				if term.namesOnly != inNames || !slices.Equal(words[i:min(len(words), i+len(term.words))],
					term.words) ||
					slices.ContainsFunc(term.allowed,
						func(prefix string) bool { return strings.HasPrefix(rel, prefix) }) {
					continue
				}
				message := strings.Join(term.words, " ") + " (write " + term.replacement + ")"
				if !slices.Contains(found, message) {
					found = append(found, message)
				}
			}
		}
	}
	add(splitWords(line), false)
	for _, field := range strings.FieldsFunc(line, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_'
	}) {
		if isCode || isName(field) {
			add(splitWords(field), true)
		}
	}
	return found
}

// termIndex has the terms by their first word.
type termIndex map[string][]retiredTerm

func indexTerms(terms []retiredTerm) termIndex {
	index := termIndex{}
	for _, term := range terms {
		index[term.words[0]] = append(index[term.words[0]], term)
	}
	return index
}

// oldNames is the heading of a section whose old names are history.
const oldNames = "## Deleted tests\n"

// checkWords returns the lines of a file that contain retired terms, up to the section oldNames.
func checkWords(rel, text string, terms termIndex) []finding {
	var found []finding
	report := func(line int, text string, isCode bool) {
		for _, term := range retiredIn(text, isCode, terms, rel) {
			found = append(found, finding{line, "retired: " + term})
		}
	}
	report(1, path.Base(rel), true)
	if path.Ext(rel) != ".go" {
		number := 0
		for line := range strings.Lines(text) {
			if line == oldNames {
				break
			}
			number++
			report(number, line, false)
		}
		return found
	}
	forGoTokens(text, func(line int, kind token.Token, literal string) {
		if kind == token.IDENT {
			report(line, literal, true)
			return
		}
		offset := 0
		for part := range strings.Lines(literal) {
			report(line+offset, part, false)
			offset++
		}
	})
	return found
}

// forGoTokens calls visit with each identifier, comment and string of Go source, and its line.
func forGoTokens(text string, visit func(line int, kind token.Token, literal string)) {
	files := token.NewFileSet()
	file := files.AddFile("", -1, len(text))
	var s scanner.Scanner
	s.Init(file, []byte(text), nil, scanner.ScanComments)
	for {
		pos, kind, literal := s.Scan()
		switch kind {
		case token.EOF:
			return
		case token.IDENT, token.COMMENT, token.STRING:
			visit(files.Position(pos).Line, kind, literal)
		}
	}
}

// checkWidths returns the lines of a file that are too wide. It skips tables, struct tags, lines with
// an address or a picture, the frozen references of the benchmark and, in Markdown, quoted output
// and the results that the benchmark writes.
func checkWidths(rel, text string) []finding {
	if strings.HasPrefix(rel, "bench/reference/") {
		return nil
	}
	var found []finding
	number, fenced := 0, false
	scan := bufio.NewScanner(strings.NewReader(text))
	scan.Buffer(nil, 1<<24)
	for scan.Scan() {
		number++
		line := scan.Text()
		trimmed := strings.TrimSpace(line)
		limit := codeColumns
		switch path.Ext(rel) {
		case ".md":
			switch {
			case strings.HasPrefix(trimmed, "```"):
				fenced = !fenced
			case trimmed == "<!-- results -->":
				fenced = true
			case trimmed == "<!-- end of results -->":
				fenced = false
			}
			if fenced || strings.HasPrefix(trimmed, "![") || strings.HasPrefix(line, "    ") ||
				strings.HasPrefix(trimmed, "|") {
				continue
			}
			limit = textColumns
		case ".go":
			if strings.HasPrefix(trimmed, "//") && !strings.HasPrefix(trimmed, "//go:") {
				limit = textColumns
			}
		case ".sql":
			if strings.HasPrefix(trimmed, "--") {
				limit = textColumns
			}
		case ".sh":
			if strings.HasPrefix(trimmed, "#") {
				limit = textColumns
			}
		}
		if strings.Contains(line, "://") || strings.Contains(line, " `yaml:\"") {
			continue
		}
		if n := columns(line); n > limit {
			found = append(found, finding{number, "too wide"})
		}
	}
	return found
}

func columns(line string) int {
	return utf8.RuneCountInString(line) + strings.Count(line, "\t")*(tabColumns-1)
}

// isGenerated reports whether a program writes the file.
func isGenerated(rel, text string) bool {
	head := text[:min(len(text), 400)]
	return strings.Contains(head, "Code generated") || strings.Contains(strings.ToLower(head), "generated ") ||
		rel == "migrations/schema.sql"
}

// textFiles returns the paths of the files that the checks of words and widths read, relative to
// root.
func textFiles(root string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(root, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if base := d.Name(); rel != "." && (strings.HasPrefix(base, ".") || base == "node_modules" ||
				base == "bin" || base == "testdata" || base == "samples" || base == "vectors") {
				return filepath.SkipDir
			}
			return nil
		}
		switch path.Ext(rel) {
		case ".go", ".sql", ".sh", ".md":
			if rel != "CHANGELOG.md" && !strings.HasPrefix(rel, "internal/archtest/") {
				files = append(files, rel)
			}
		}
		return nil
	})
	return files, err
}
