package load

import (
	"maps"
	"os"
	"testing"
)

// PostgreSQL runs with the requested settings, and SettingsInForce returns them in addition to the
// named ones.
func TestSettingsInForce_customSettings_areReturned(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "postern-bench-")
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{Dir: dir, Settings: map[string]string{"shared_buffers": "16MB", "work_mem": "5MB"}}
	t.Cleanup(func() {
		if err := m.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil { // PostgreSQL may run as another account
		t.Fatal(err)
	}
	if err := m.startPostgres(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, err := m.SettingsInForce(t.Context(), "fsync", "shared_buffers")
	if want := map[string]string{"fsync": "on", "shared_buffers": "16MB", "work_mem": "5MB"}; err != nil ||
		!maps.Equal(got, want) {
		t.Errorf("settings %v, %v; want %v", got, err, want)
	}
}
