package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Row is one load or one question that all its targets get in turn.
type Row struct {
	Name string `json:"name"`
	// Chapter is the part of the report.
	Chapter string `json:"chapter"`
	About   string `json:"about"`
	// Takes is the estimated duration.
	Takes time.Duration `json:"-"`
	run   func(context.Context, *Suite) ([]Sample, error)
}

// Gap is a row that could not be measured.
type Gap struct {
	Row   string `json:"row"`
	Error string `json:"error"`
}

// Do runs rows one after the other and collects their samples. It calls remaining with the estimate
// before each row, and save after it. A row that fails is recorded as a gap. Only the end of ctx or
// an error of save ends the run.
func (s *Suite) Do(ctx context.Context, rows []Row, remaining func(time.Duration), save func() error) error {
	for i, row := range rows {
		remaining(Estimate(rows[i:]))
		s.log.Info(row.Name, "row", fmt.Sprintf("%d of %d", i+1, len(rows)), "about", row.About)
		samples, err := row.run(ctx, s)
		s.Samples = append(s.Samples, samples...)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			s.log.Error(row.Name, "error", err)
			s.Gaps = append(s.Gaps, Gap{Row: row.Name, Error: err.Error()})
		}
		if err := save(); err != nil {
			return err
		}
	}
	return nil
}

// Estimate returns about how long rows take.
func Estimate(rows []Row) time.Duration {
	var sum time.Duration
	for _, row := range rows {
		sum += row.Takes
	}
	return sum
}

// Choose returns the rows with the given names, in the order of rows. A name that ends in * matches
// every row with that beginning.
func Choose(rows []Row, names []string) ([]Row, error) {
	var chosen []Row
	used := map[string]bool{}
	for _, row := range rows {
		i := slices.IndexFunc(names, func(name string) bool { return matches(row.Name, name) })
		if i >= 0 {
			chosen = append(chosen, row)
		}
		for _, name := range names {
			used[name] = used[name] || matches(row.Name, name)
		}
	}
	for _, name := range names {
		if !used[name] {
			return nil, errors.New("no row " + name + ": list the rows with -list")
		}
	}
	return chosen, nil
}

func matches(row, name string) bool {
	if begin, ok := strings.CutSuffix(name, "*"); ok {
		return strings.HasPrefix(row, begin)
	}
	return row == name
}

// capacity returns the most events per second that a target accepted in a closed loop. It measures
// now if no row has done so.
func (s *Suite) capacity(ctx context.Context, target string) (float64, error) {
	best := 0.0
	for _, row := range []string{main64, main256, capacityRow} {
		best = max(best, s.Samples.Value(row, target, Rate).Median)
	}
	if best > 0 {
		return best, nil
	}
	shape := closed(64)
	shape.For = 3 * time.Second
	samples, err := s.Compare(ctx, capacityRow, 1, shape, target)
	if err != nil {
		return 0, err
	}
	s.Samples = append(s.Samples, samples...)
	return samples[0].Rate, nil
}

// capacityRow is the row of the samples that capacity measures itself.
const capacityRow = "capacity"
