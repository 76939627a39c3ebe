package suite

// bound is a figure that must hold.
type bound struct {
	// What names the measured thing. Formula describes how the figure is computed.
	What, Formula string
	// Least means that the figure must be at least Limit, and otherwise at most. Aim is the
	// intended value, 0 if there is none beyond the limit.
	Least      bool
	Limit, Aim float64
	// Unit is the unit of the figure, "x" for a ratio.
	Unit string
	// Rows are the rows whose samples the figure uses.
	Rows []string
	// Figure computes the figure. One without rounds was not measured.
	Figure func(Samples) Figure
	// Applies reports whether the bound applies to this machine. nil means always.
	Applies func(Samples) bool
}

// ratio bounds a target's metric divided by a reference's in the same round.
func ratio(what, row, target, reference, name string, m Metric) bound {
	return bound{What: what, Unit: "x", Rows: []string{row}, Formula: name + " of " + target + " / " + name + " of " +
		reference,
		Figure: func(s Samples) Figure { return s.Ratio(row, target, reference, m) }}
}

// value bounds a target's metric, which formula describes.
func value(what, row, target, formula, unit string, m Metric) bound {
	return bound{What: what, Unit: unit, Rows: []string{row}, Formula: formula,
		Figure: func(s Samples) Figure { return s.Value(row, target, m) }}
}

func (b bound) atLeast(limit float64) bound { b.Least, b.Limit = true, limit; return b }
func (b bound) atMost(limit float64) bound  { b.Least, b.Limit = false, limit; return b }
func (b bound) aim(aim float64) bound       { b.Aim = aim; return b }

// where makes a bound apply only under a condition.
func (b bound) where(applies func(Samples) bool) bound { b.Applies = applies; return b }

// share bounds a target's rate divided by the median rate of another target in another row.
func share(what, row, target, other, of string) bound {
	return bound{What: what, Unit: "x", Rows: []string{row, other}, Formula: "events/s of " + target +
		" / events/s of " + of + " in " + other,
		Figure: func(s Samples) Figure {
			whole, part := s.Value(other, of, Rate), s.Value(row, target, Rate)
			if whole.Rounds == 0 || whole.Median == 0 {
				return Figure{}
			}
			return Figure{Median: part.Median / whole.Median, Min: part.Min / whole.Median,
				Max: part.Max / whole.Median, Rounds: part.Rounds}
		}}
}

// reaches returns a function that reports whether a target's median rate reaches a number in any of
// the rows.
func reaches(target string, rate float64, rows ...string) func(Samples) bool {
	return func(s Samples) bool {
		for _, row := range rows {
			if s.Value(row, target, Rate).Median >= rate {
				return true
			}
		}
		return false
	}
}

// worst bounds the largest figure of a metric over all rows of one target.
func worst(what, name, unit, target string, m Metric, rows ...string) bound {
	return bound{What: what, Unit: unit, Rows: rows, Formula: name + ", the largest of all rounds",
		Figure: func(s Samples) Figure {
			return s.largest(m, rows, func(string) []string { return []string{target} })
		}}
}

// worstOfAll bounds the largest figure of a metric over all targets of all rows.
func worstOfAll(what, name, unit string, m Metric, rows ...string) bound {
	return bound{What: what, Unit: unit, Rows: rows, Formula: name + ", the largest of all rounds and targets",
		Figure: func(s Samples) Figure { return s.largest(m, rows, s.Targets) }}
}

// largest returns a figure whose median is the maximum, for failures that must not happen even
// once.
func (s Samples) largest(m Metric, rows []string, targets func(row string) []string) Figure {
	var values []float64
	for _, row := range rows {
		for _, target := range targets(row) {
			if f := s.Value(row, target, m); f.Rounds > 0 {
				values = append(values, f.Max)
			}
		}
	}
	f := figure(values)
	f.Median = f.Max
	return f
}

// publishedWithin is the time from a load's end to its last published event. An unpublished event
// counts as a minute.
func publishedWithin(s Sample) (float64, bool) {
	v, ok := s.More["published_within_s"]
	if ok && v < 0 {
		return 60, true
	}
	return v, ok
}
