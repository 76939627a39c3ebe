package windows

import (
	"errors"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

// Metrics tell how far rules on a schedule are; nil tells nothing.
type Metrics struct {
	late, waits, waited *prometheus.GaugeVec
	// told are the rules so far; who asks owns it.
	told map[string]time.Duration
	// counted are those that waited for something; who asks owns it.
	counted map[string]waiting
}

// NewMetrics registers the metrics of rules on a schedule.
func NewMetrics(reg prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{late: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "postern_effect_window_behind_seconds",
		Help: "For how long a window of a rule on a schedule has been over that is not seen to; 0 where there is none. Where the database's clock was put back behind what was seen to, for how long the rule is not asked. As the database says every second, the same in every processor, so take the max; NaN while it does not answer."}, []string{"rule"})}
	m.waits = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "postern_effect_window_waits",
		Help: "Of how many objects, each counted in each of its windows, a rule on a schedule waits to know the state. As the database says every minute, the same in every processor, so take the max."}, []string{"rule"})
	m.waited = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "postern_effect_window_waits_seconds",
		Help: "How long ago the oldest window ended of which a rule on a schedule waits to know the state of an object; 0 where there is none. As the database says every minute, so take the max."}, []string{"rule"})
	return m, errors.Join(reg.Register(m.late), reg.Register(m.waits), reg.Register(m.waited))
}

// waiting is what a rule waits for.
type waiting struct {
	objects int64
	seconds float64
}

// waiting says what rules wait for.
func (m *Metrics) waiting(all map[string]waiting) {
	if m == nil {
		return
	}
	for rule := range m.counted {
		if _, ok := all[rule]; ok {
			continue
		}
		if _, ok := m.told[rule]; !ok {
			m.waits.DeleteLabelValues(rule)
			m.waited.DeleteLabelValues(rule)
			continue
		}
		m.waits.WithLabelValues(rule).Set(0)
		m.waited.WithLabelValues(rule).Set(0)
	}
	for rule, w := range all {
		m.waits.WithLabelValues(rule).Set(float64(w.objects))
		m.waited.WithLabelValues(rule).Set(w.seconds)
	}
	m.counted = all
}

// know makes the series of rules.
func (m *Metrics) know(all []*rules.Rule) {
	if m == nil {
		return
	}
	for _, r := range all {
		m.late.WithLabelValues(r.Name)
		m.waits.WithLabelValues(r.Name)
		m.waited.WithLabelValues(r.Name)
	}
}

// behind says of the rules that there are how far behind they are.
func (m *Metrics) behind(all map[string]time.Duration) {
	if m == nil {
		return
	}
	for rule := range m.told {
		if _, ok := all[rule]; !ok {
			m.late.DeleteLabelValues(rule)
			m.waits.DeleteLabelValues(rule)
			m.waited.DeleteLabelValues(rule)
		}
	}
	for rule, by := range all {
		m.late.WithLabelValues(rule).Set(by.Seconds())
	}
	m.told = all
}

// lost says that nothing is known.
func (m *Metrics) lost() {
	if m == nil {
		return
	}
	for rule := range m.told {
		m.late.WithLabelValues(rule).Set(math.NaN())
	}
}
