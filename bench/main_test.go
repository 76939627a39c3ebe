package main

import (
	"errors"
	"testing"

	"github.com/postern-gateway/postern/bench/suite"
)

// A strict run of all rows fails if a bound was not measured. A run of chosen rows cannot measure
// all bounds.
func TestStrictError_verdicts_errorOnlyIfStrict(t *testing.T) {
	t.Parallel()
	verdicts := func(status ...suite.Status) (out []suite.Verdict) {
		for _, s := range status {
			out = append(out, suite.Verdict{Status: s})
		}
		return out
	}
	well, failed, missing := verdicts(suite.Pass, suite.Idle), verdicts(suite.Pass, suite.Fail, suite.Missing),
		verdicts(suite.Pass, suite.Missing)
	for _, c := range []struct {
		name     string
		o        options
		verdicts []suite.Verdict
		want     error
	}{
		{"all hold", options{strict: true}, well, nil},
		{"one fails", options{strict: true}, failed, errBounds},
		{"one fails, of some rows", options{strict: true, only: "large"}, failed, errBounds},
		{"one fails, not strict", options{}, failed, nil},
		{"one is missing", options{strict: true, rounds: 9}, missing, errUnmeasured},
		{"one is missing, of some rows", options{strict: true, only: "large"}, missing, nil},
		{"one is missing, quick", options{strict: true, quick: true}, missing, nil},
		{"one is missing, not strict", options{}, missing, nil},
	} {
		if err := c.o.strictError(c.verdicts); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}
