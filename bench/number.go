package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/postern-gateway/postern/bench/suite"
)

// number formats a figure with three significant digits and separated thousands.
func number(v float64) string {
	switch size := math.Abs(v); {
	case size >= 100:
		return thousands(int64(math.Round(v)))
	case size >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case v == 0:
		return "0"
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}

func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	var groups []string
	for len(digits) > 3 {
		groups = append([]string{digits[len(digits)-3:]}, groups...)
		digits = digits[:len(digits)-3]
	}
	return sign + strings.Join(append([]string{digits}, groups...), ",")
}

// median formats a figure's median, or a dash if it was not measured.
func median(f suite.Figure) string {
	if f.Rounds == 0 {
		return "–"
	}
	return number(f.Median)
}

// cell formats a figure for a table. Unless zero is a valid value, it shows zero as a dash.
func cell(f suite.Figure, zero bool) string {
	if f.Max == 0 && !zero {
		return "–"
	}
	return median(f)
}

// spread formats a figure with the minimum and maximum of its rounds.
func spread(f suite.Figure, unit string) string {
	switch {
	case f.Rounds == 0:
		return "–"
	case f.Rounds == 1 || number(f.Min) == number(f.Max):
		return withUnit(f.Median, unit)
	}
	return fmt.Sprintf("%s (%s to %s)", withUnit(f.Median, unit), number(f.Min), number(f.Max))
}

// withUnit appends a unit to a number. The unit of a ratio is ×.
func withUnit(v float64, unit string) string {
	switch unit {
	case "x":
		return number(v) + " ×"
	case "":
		return number(v)
	}
	return number(v) + " " + unit
}
