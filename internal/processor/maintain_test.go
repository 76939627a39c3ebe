package processor_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/processor"
)

// Partitions are made eight days ahead; where they are not, whoever looks is told, in the log and by the metric, and the gap counts, not the last day.
func TestPartitionsAhead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	keeper := b.db.Role(t, "maintenance")
	var said bytes.Buffer
	reg := prometheus.NewRegistry()
	p, err := processor.New(processor.Options{Pool: b.pool, Settings: processor.DefaultSettings, ID: "p", Logger: slog.New(slog.NewTextHandler(&said, nil)), Metrics: reg})
	if err != nil {
		t.Fatal(err)
	}
	day := func(ahead int) string { return time.Now().UTC().AddDate(0, 0, ahead).Format("20060102") }
	ends := func(ahead int) {
		t.Helper()
		want, err := time.Parse("20060102", day(ahead))
		if err != nil {
			t.Fatal(err)
		}
		found, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range found {
			if m.GetName() == "postern_partitions_until_timestamp_seconds" && m.GetMetric()[0].GetGauge().GetValue() == float64(want.Unix()) {
				return
			}
		}
		t.Errorf("the metric does not say %s", want)
	}
	if err := processor.Maintained(t.Context(), p, keeper); err != nil || said.Len() > 0 {
		t.Fatal(err, said.String())
	}
	ends(9)
	if _, err := b.db.Pool.Exec(t.Context(), "DROP TABLE events_"+day(3)); err != nil {
		t.Fatal(err)
	}
	// Whoever was to make it cannot.
	if err := processor.Maintained(t.Context(), p, b.db.Role(t, "reader")); err == nil {
		t.Error("a reader makes partitions")
	}
	ends(3)
	if !strings.Contains(said.String(), "level=ERROR") || !strings.Contains(said.String(), "end too soon") {
		t.Errorf("said %q", said.String())
	}
}
