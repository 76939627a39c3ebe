// Package report writes the results of a benchmark as tables, pictures and pages.
package report

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/postern-gateway/postern/bench/plan"
)

// Results has one run of the benchmark, enough to make every table and picture again.
type Results struct {
	Began   time.Time      `json:"began"`
	Took    string         `json:"took"`
	Command string         `json:"command"`
	Commit  string         `json:"commit"`
	Machine Machine        `json:"machine"`
	Rows    []Row          `json:"rows"`
	Samples plan.Samples   `json:"samples"`
	Gaps    []plan.Gap     `json:"gaps,omitempty"`
	Bounds  []plan.Verdict `json:"bounds"`
}

// Row describes a row of samples.
type Row struct {
	Name    string `json:"name"`
	Chapter string `json:"chapter"`
	About   string `json:"about"`
}

// The files of a run, in its folder.
const (
	resultsFile = "results.json"
	tablesFile  = "results.md"
)

// Rows returns the parts of the plan's rows that a report shows.
func Rows(rows []plan.Row) []Row {
	kept := make([]Row, len(rows))
	for i, row := range rows {
		kept[i] = Row{Name: row.Name, Chapter: row.Chapter, About: row.About}
	}
	return kept
}

// Judge compares the samples with the current bounds.
func (r *Results) Judge() { r.Bounds = plan.Judge(r.Samples, plan.Bounds()) }

// Save writes the results into a folder.
func (r *Results) Save(dir string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, resultsFile), append(text, '\n'), 0o644)
}

// Read reads results from a file.
func Read(file string) (*Results, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &Results{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("read results %s: %w", file, err)
	}
	r.Judge() // with the current bounds
	return r, nil
}

// Write writes tables and pictures into a folder.
func (r *Results) Write(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, tablesFile), []byte("# Results\n\n"+r.Markdown()), 0o644); err != nil {
		return err
	}
	return r.Pictures(dir)
}
