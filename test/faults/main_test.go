// Package faults breaks what Postern stands on, one thing at a time, while deliveries come in. docs/faults.md is the table of it.
package faults_test

import (
	"flag"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
)

// atOnce is how many sites are broken at the same time: they wait most of theirs.
const atOnce = "8"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err) // the flag is the testing package's
	}
	testkit.Main(m)
}
