package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/postern-gateway/postern/bench/report"
)

// document writes docs/benchmarks.md and its pictures from the results in the folder out. Without
// results there it uses those that the page was made of before.
func document(out string) error {
	page := report.DocsPage()
	r, err := report.Read(filepath.Join(out, "results.json"))
	if errors.Is(err, fs.ErrNotExist) {
		r, err = page.Results()
	}
	if err != nil {
		return err
	}
	if err := page.Write(r); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "written:", page.File, "and", page.Dir)
	return nil
}
