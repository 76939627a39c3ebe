package telemetry_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/postern-gateway/postern/internal/telemetry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNewLogger_formatAndLevel_areChecked(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := telemetry.NewLogger(&out, "json", "WARN")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("below the level")
	log.Warn("seen", "source", "stripe")
	var line struct{ Msg, Source string }
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Msg != "seen" || line.Source != "stripe" {
		t.Errorf("got %q, %v; want only the warning", out.String(), err)
	}
	for _, wrong := range [][2]string{{"xml", "info"}, {"text", "loud"}} {
		if _, err := telemetry.NewLogger(&out, wrong[0], wrong[1]); err == nil ||
			!strings.Contains(err.Error(), "use ") {
			t.Errorf("format %q, level %q: got %v, want an error that names the choices", wrong[0], wrong[1], err)
		}
	}
}

func TestMetrics_page_isServed(t *testing.T) {
	t.Parallel()
	m := telemetry.NewMetrics()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "postern_test_total", Help: "counts"})
	m.MustRegister(c)
	c.Add(3)
	rec := httptest.NewRecorder()
	m.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{"postern_test_total 3", "go_goroutines ", "process_"} {
		if !strings.Contains(rec.Body.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}
