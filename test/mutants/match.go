package main

import (
	"fmt"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A mutant identifies the code that it changes by its shape, so that it still matches after an
// identifier, a column or a package was renamed. Two texts have the same shape if renaming words
// turns one into the other. Keywords, numbers and punctuation must be the same.

// lexeme is a word, a number or a punctuation mark of a text, at an offset. A word that is no
// keyword of Go or SQL is renamable.
type lexeme struct {
	text      string
	at        int
	renamable bool
}

func (l lexeme) end() int { return l.at + len(l.text) }

// lex splits a text into lexemes. The contents of strings are split too, since they are SQL.
func lex(text string) (all []lexeme) {
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRuneInString(text[at:])
		end := at + size
		switch {
		case unicode.IsSpace(r):
			at = end
			continue
		case isWordRune(r):
			for end < len(text) {
				next, n := utf8.DecodeRuneInString(text[end:])
				if !isWordRune(next) {
					break
				}
				end += n
			}
		}
		all = append(all, lexeme{text[at:end], at, renamable(text[at:end])})
		at = end
	}
	return all
}

func isWordRune(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// fixed are the words that are not renamable: those of Go and SQL.
var fixed = func() map[string]bool {
	words := map[string]bool{}
	for t := token.BREAK; t <= token.VAR; t++ {
		words[t.String()] = true
	}
	for _, w := range strings.Fields(`nil true false len cap append min max new make error string int int64 int32 byte
		bool any ctx err t
		SELECT FROM WHERE AND OR NOT NULL IS IN ANY ALL UPDATE SET INSERT INTO VALUES ON CONFLICT DO NOTHING ORDER BY
			LIMIT FOR SHARE SKIP LOCKED
		RETURNING EXISTS CASE WHEN THEN ELSE END JOIN LEFT LATERAL AS WITH DELETE DISTINCT DESC ASC
			UNION count coalesce greatest least`) {
		words[w] = true
	}
	return words
}()

func renamable(word string) bool {
	r, _ := utf8.DecodeRuneInString(word)
	return (r == '_' || unicode.IsLetter(r)) && !fixed[word]
}

// source is a file to search. lexemes leaves out comments.
type source struct {
	path    string
	text    string
	lexemes []lexeme
}

func readSource(path string) (*source, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return newSource(path, raw), nil
}

func newSource(path string, raw []byte) *source {
	blank := slices.Clone(raw)
	var s scanner.Scanner
	files := token.NewFileSet()
	file := files.AddFile(path, files.Base(), len(raw))
	s.Init(file, raw, nil, scanner.ScanComments)
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			break
		}
		if tok == token.COMMENT {
			at := file.Offset(pos)
			for i := range len(lit) {
				if blank[at+i] != '\n' {
					blank[at+i] = ' '
				}
			}
		}
	}
	return &source{path, string(raw), lex(string(blank))}
}

// sources returns the product's files: all of internal and cmd except tests and packages for tests.
func sources(root string) ([]*source, error) {
	var all []*source
	for _, dir := range []string{"internal", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				if err == nil && (d.Name() == "testkit" || d.Name() == "testdata" || d.Name() == "archtest") {
					return filepath.SkipDir
				}
				return err
			}
			if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return nil
			}
			one, err := readSource(path)
			if err == nil {
				all = append(all, one)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// place is code that has the shape of a pattern.
type place struct {
	in         *source
	start, end int
	// names maps the words of the pattern to those of the code.
	names map[string]string
}

// find returns all code of a shape.
func find(pattern string, in []*source) (found []place) {
	want := lex(pattern)
	for _, s := range in {
		for at := 0; at+len(want) <= len(s.lexemes); at++ {
			if names, ok := same(want, s.lexemes[at:at+len(want)]); ok {
				found = append(found, place{s, s.lexemes[at].at, s.lexemes[at+len(want)-1].end(), names})
			}
		}
	}
	return found
}

// same reports whether renaming turns want into got, and returns the renamed words.
func same(want, got []lexeme) (map[string]string, bool) {
	for i, w := range want { // almost every candidate fails here
		if g := got[i]; w.renamable != g.renamable || !w.renamable && w.text != g.text {
			return nil, false
		}
	}
	names, taken := map[string]string{}, map[string]bool{}
	for i, w := range want {
		g := got[i].text
		switch name, known := names[w.text]; {
		case !w.renamable:
		case known:
			if name != g {
				return nil, false
			}
		case taken[g]:
			return nil, false
		default:
			names[w.text], taken[g] = g, true
		}
	}
	return names, true
}

// rewrite returns a replacement in which the words of the pattern are replaced by those of the
// code.
func rewrite(replacement string, names map[string]string) string {
	var out strings.Builder
	last := 0
	for _, l := range lex(replacement) {
		if name, ok := names[l.text]; ok {
			out.WriteString(replacement[last:l.at])
			out.WriteString(name)
			last = l.end()
		}
	}
	out.WriteString(replacement[last:])
	return out.String()
}

// apply returns the changed files by path. It returns an error if an edit matches no place or
// several.
func (m mutant) apply(in []*source) (map[string]string, error) {
	changed := map[string]string{}
	for _, e := range m.edits {
		found := find(e.old, in)
		if exact := slices.DeleteFunc(slices.Clone(found), func(p place) bool { return !p.unrenamed() }); len(
			found) > 1 && len(exact) == 1 {
			found = exact
		}
		if len(found) != 1 {
			var where []string
			for _, p := range found {
				where = append(where, fmt.Sprintf("%s:%d", p.in.path, 1+strings.Count(p.in.text[:p.start], "\n")))
			}
			return nil, fmt.Errorf("%d places have the shape of %q, want 1 (%s): write this mutant again for the "+
				"changed code", len(found), e.old, strings.Join(where, ", "))
		}
		p := found[0]
		text := p.in.text[:p.start] + rewrite(e.new, p.names) + p.in.text[p.end:]
		changed[p.in.path] = text
		if len(m.edits) > 1 { // the next edit sees this one
			in = slices.Clone(in)
			in[slices.Index(in, p.in)] = newSource(p.in.path, []byte(text))
		}
	}
	return changed, nil
}

// unrenamed reports whether the code has the words of the pattern.
func (p place) unrenamed() bool {
	for from, to := range p.names {
		if from != to {
			return false
		}
	}
	return true
}
