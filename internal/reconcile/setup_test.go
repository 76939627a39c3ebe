package reconcile_test

import (
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }
