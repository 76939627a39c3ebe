// Package testkit gives tests real things to run against: a database of their own, a JetStream server, a link that fails on
// command. Only tests import it. Nothing in it skips: without PostgreSQL a test fails and says how to install it.
package testkit

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main is what TestMain of a package calls: it runs the tests, stops what they shared, and fails on goroutines left behind.
func Main(m *testing.M) {
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "testkit:", err)
		code = max(code, 1)
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, "testkit:", err)
			code = 1
		}
	}
	os.Exit(code)
}
