package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// page is docs/benchmarks.md and the folder next to it with its results and pictures.
type page struct{ File, Dir string }

// docsPage returns the project's page, relative to the folder bench.
func docsPage() page {
	return page{File: filepath.Join("..", "docs", "benchmarks.md"), Dir: filepath.Join("..", "docs", "benchmarks")}
}

// The marks that enclose the results in a page. All other text of the page is written by hand.
const (
	beginMark = "<!-- results -->"
	endMark   = "<!-- end of results -->"
)

// fillPage replaces the text between the marks of a page.
func fillPage(page, text string) (string, error) {
	before, rest, found := strings.Cut(page, beginMark)
	_, after, ended := strings.Cut(rest, endMark)
	if !found || !ended {
		return "", fmt.Errorf("the page has no %s and %s", beginMark, endMark)
	}
	return before + beginMark + "\n\n" + text + "\n" + endMark + after, nil
}

// results returns the results that the page shows.
func (p page) results() (*results, error) { return readResults(filepath.Join(p.Dir, resultsFile)) }

// text returns the page with the given results.
func (p page) text(r *results) (string, error) {
	page, err := os.ReadFile(p.File)
	if err != nil {
		return "", err
	}
	return fillPage(string(page), r.pictureLinks(p.Dir)+r.brief())
}

// write writes results into the page, and the data and pictures into its folder.
func (p page) write(r *results) error {
	text, err := p.text(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(p.Dir, 0o755); err != nil {
		return err
	}
	return errors.Join(r.save(p.Dir), r.writePictures(p.Dir), os.WriteFile(p.File, []byte(text), 0o644))
}

// pictureLinks links the pictures for which there are samples.
func (r *results) pictureLinks(dir string) string {
	var b strings.Builder
	for _, p := range r.pictures() {
		if drawn, err := p.draw(); err == nil && drawn != nil {
			fmt.Fprintf(&b, "![%s](%s/%s)\n\n", p.about, filepath.Base(dir), p.file)
		}
	}
	return b.String()
}

// document writes docs/benchmarks.md and its pictures from the results in the folder out. Without
// results there it uses those that the page was made of before.
func document(out string) error {
	page := docsPage()
	r, err := readResults(filepath.Join(out, "results.json"))
	if errors.Is(err, fs.ErrNotExist) {
		r, err = page.results()
	}
	if err != nil {
		return err
	}
	if err := page.write(r); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "written:", page.File, "and", page.Dir)
	return nil
}
