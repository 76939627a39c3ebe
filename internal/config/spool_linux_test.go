package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
)

// A folder in memory is rejected by its file system, whatever its name is. On Linux /dev/shm is
// one.
func TestCheckSpool_memory_isRejected(t *testing.T) {
	t.Parallel()
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink("/dev/shm", link))
	for _, dir := range []string{"/dev/shm", "/dev/shm/postern/spool", link + "/spool"} {
		_, err := config.Parse(fmt.Appendf(nil, spoolExample, dir, false), environment())
		if err == nil || !strings.Contains(err.Error(), dir+" is in memory (tmpfs), so acknowledged deliveries are "+
			"lost when the machine stops") {
			t.Errorf("%s: %v", dir, err)
		}
		if _, err := config.Parse(fmt.Appendf(nil, spoolExample, dir, true), environment()); err != nil {
			t.Errorf("%s with unsafe_dir: %v", dir, err)
		}
	}
}
