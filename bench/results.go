package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/postern-gateway/postern/bench/suite"
)

// results has one run of the benchmark, enough to make every table and picture again.
type results struct {
	Began   time.Time       `json:"began"`
	Took    string          `json:"took"`
	Command string          `json:"command"`
	Commit  string          `json:"commit"`
	Machine machine         `json:"machine"`
	Rows    []suite.Row     `json:"rows"`
	Samples suite.Samples   `json:"samples"`
	Gaps    []suite.Gap     `json:"gaps,omitempty"`
	Bounds  []suite.Verdict `json:"bounds"`
}

// The files of a run, in its folder.
const (
	resultsFile = "results.json"
	tablesFile  = "results.md"
)

// judge compares the samples with the current bounds.
func (r *results) judge() { r.Bounds = suite.Judge(r.Samples, suite.Bounds()) }

// save writes the results into a folder.
func (r *results) save(dir string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, resultsFile), append(text, '\n'), 0o644)
}

// readResults reads results from a file.
func readResults(file string) (*results, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &results{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("read results %s: %w", file, err)
	}
	r.judge() // with the current bounds
	return r, nil
}

// write writes tables and pictures into a folder.
func (r *results) write(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, tablesFile), []byte("# Results\n\n"+r.markdown()), 0o644); err != nil {
		return err
	}
	return r.writePictures(dir)
}
