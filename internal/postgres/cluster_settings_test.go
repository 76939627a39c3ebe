package postgres_test

import (
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestClusterHasTheSettingsItIsGiven(t *testing.T) {
	t.Parallel()
	c, err := postgres.StartCluster(t.Context(), postgres.ClusterOptions{Dir: clusterDir(t), Fast: true, Logger: testkit.Logger(t),
		Settings: map[string]string{"shared_buffers": "16MB", "application_name": "a b=c"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, c) })
	// One that it has anyway, one that it has not, and one of those that were not given.
	const sql = "SELECT current_setting('shared_buffers') || ', ' || reset_val || ', ' || current_setting('max_wal_size') FROM pg_settings WHERE name = 'application_name'"
	if got, want := query(t, c.URL(), sql), "16MB, a b=c, 1GB"; got != want {
		t.Errorf("the settings are %q, want %q", got, want)
	}
}

func TestClusterSaysWhichSettingsAreRefused(t *testing.T) {
	t.Parallel()
	dir := clusterDir(t)
	for name, c := range map[string]struct {
		settings map[string]string
		says     []string
	}{
		"no such name": {map[string]string{"shared_bufers": "1GB"}, []string{"correct or leave out", "shared_bufers=1GB", `unrecognized configuration parameter "shared_bufers"`}},
		"bad value":    {map[string]string{"work_mem": "1MB", "fsync": "perhaps"}, []string{"fsync=perhaps, work_mem=1MB", `parameter "fsync" requires a Boolean value`}},
	} {
		running, err := postgres.StartCluster(t.Context(), postgres.ClusterOptions{Dir: dir, Fast: true, Settings: c.settings})
		if err == nil {
			stop(t, running)
			t.Errorf("%s: it starts", name)
			continue
		}
		for _, want := range c.says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error does not have %q: %v", name, want, err)
			}
		}
	}
	start(t, dir) // nothing is left in the way of one without them
}
