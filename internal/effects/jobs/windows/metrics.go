package windows

import (
	"errors"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

// Metrics show the progress of rules on a schedule; nil does nothing.
type Metrics struct {
	behind, deferred, deferredAge *prometheus.GaugeVec
	// rules are the rules with series; only the goroutine of Tick uses them.
	rules map[string]time.Duration
	// deferredRules are the rules that had deferred objects; only the goroutine of Tick uses them.
	deferredRules map[string]deferredCount
}

// NewMetrics registers the metrics of rules on a schedule.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{behind: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "postern_effect_window_lag_seconds",
		Help: "Time since the end of the oldest window that a rule on a schedule has not evaluated yet; 0 if " +
			"there is none. If the database's clock was set back, the value is how long the rule will not be " +
			"evaluated. Every processor reads this value from the database every second and reports the same, so " +
			"aggregate with max; NaN while the database does not respond."}, []string{"rule"})}
	m.deferred = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "postern_effect_window_waits",
		Help: "Objects that a rule on a schedule has deferred, because their state is ambiguous or unknown. An " +
			"object counts once for each window. Every processor reads this value from the database every minute " +
			"and reports the same, so aggregate with max."},
		[]string{"rule"})
	m.deferredAge = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "postern_effect_window_waits_seconds",
		Help: "Time since the end of the oldest window in which a rule on a schedule has a deferred object; 0 if " +
			"there is none. Every processor reads this value from the database every minute and reports the same, " +
			"so aggregate with max."}, []string{"rule"})
	return m, errors.Join(reg.Register(m.behind), reg.Register(m.deferred), reg.Register(m.deferredAge))
}

// deferredCount counts the deferred objects of a rule, and holds the age of the oldest.
type deferredCount struct {
	objects int64
	seconds float64
}

// setDeferred sets the gauges of deferred objects.
func (m *Metrics) setDeferred(all map[string]deferredCount) {
	if m == nil {
		return
	}
	for rule := range m.deferredRules {
		if _, ok := all[rule]; ok {
			continue
		}
		if _, ok := m.rules[rule]; !ok {
			m.deferred.DeleteLabelValues(rule)
			m.deferredAge.DeleteLabelValues(rule)
			continue
		}
		m.deferred.WithLabelValues(rule).Set(0)
		m.deferredAge.WithLabelValues(rule).Set(0)
	}
	for rule, w := range all {
		m.deferred.WithLabelValues(rule).Set(float64(w.objects))
		m.deferredAge.WithLabelValues(rule).Set(w.seconds)
	}
	m.deferredRules = all
}

// register creates the series of rules.
func (m *Metrics) register(all []*rules.Rule) {
	if m == nil {
		return
	}
	for _, r := range all {
		m.behind.WithLabelValues(r.Name)
		m.deferred.WithLabelValues(r.Name)
		m.deferredAge.WithLabelValues(r.Name)
	}
}

// setBehind sets how far behind each rule is, and deletes the series of other rules.
func (m *Metrics) setBehind(all map[string]time.Duration) {
	if m == nil {
		return
	}
	for rule := range m.rules {
		if _, ok := all[rule]; !ok {
			m.behind.DeleteLabelValues(rule)
			m.deferred.DeleteLabelValues(rule)
			m.deferredAge.DeleteLabelValues(rule)
		}
	}
	for rule, by := range all {
		m.behind.WithLabelValues(rule).Set(by.Seconds())
	}
	m.rules = all
}

// setUnknown sets the lag of each rule to NaN. The other gauges keep their last values.
func (m *Metrics) setUnknown() {
	if m == nil {
		return
	}
	for rule := range m.rules {
		m.behind.WithLabelValues(rule).Set(math.NaN())
	}
}
