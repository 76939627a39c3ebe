package report

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Page is docs/benchmarks.md and the folder next to it with its results and pictures.
type Page struct{ File, Dir string }

// DocsPage returns the project's page, relative to the folder bench.
func DocsPage() Page {
	return Page{File: filepath.Join("..", "docs", "benchmarks.md"), Dir: filepath.Join("..", "docs", "benchmarks")}
}

// The marks that enclose the results in a page. All other text of the page is written by hand.
const (
	beginMark = "<!-- results -->"
	endMark   = "<!-- end of results -->"
)

// Fill replaces the text between the marks of a page.
func Fill(page, text string) (string, error) {
	before, rest, found := strings.Cut(page, beginMark)
	_, after, ended := strings.Cut(rest, endMark)
	if !found || !ended {
		return "", fmt.Errorf("the page has no %s and %s", beginMark, endMark)
	}
	return before + beginMark + "\n\n" + text + "\n" + endMark + after, nil
}

// Results returns the results that the page shows.
func (p Page) Results() (*Results, error) { return Read(filepath.Join(p.Dir, resultsFile)) }

// Text returns the page with the given results.
func (p Page) Text(r *Results) (string, error) {
	page, err := os.ReadFile(p.File)
	if err != nil {
		return "", err
	}
	return Fill(string(page), r.pictureLinks(p.Dir)+r.Markdown())
}

// Write writes results into the page, and the data and pictures into its folder.
func (p Page) Write(r *Results) error {
	text, err := p.Text(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return err
	}
	return errors.Join(r.Save(p.Dir), r.Pictures(p.Dir), os.WriteFile(p.File, []byte(text), 0o644))
}

// pictureLinks links the pictures for which there are samples.
func (r *Results) pictureLinks(dir string) string {
	var b strings.Builder
	for _, p := range r.pictures() {
		if drawn, err := p.draw(); err == nil && drawn != nil {
			fmt.Fprintf(&b, "![%s](%s/%s)\n\n", p.about, filepath.Base(dir), p.file)
		}
	}
	return b.String()
}
