package processor_test

import (
	"os"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) {
	if job := os.Getenv(childVariable); job != "" {
		os.Exit(runChild(job))
	}
	testkit.Main(m)
}
