package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/postern-gateway/postern/internal/config"
)

const (
	scrapeWithin = 2 * time.Second
	maxPage      = 16 << 20
)

// scrape is what one process told of itself at one time; err says why it told nothing.
type scrape struct {
	from string
	at   time.Time
	err  error
	page page
}

// page is a page of metrics by name.
type page map[string]*dto.MetricFamily

// scraper asks processes for their metrics.
type scraper struct {
	client *http.Client
	token  string
	from   []string
	// instance is the one that every address must belong to; nil: any.
	instance *config.Instance
}

func newScraper(from []string, in *config.Instance, asks *asking) (*scraper, error) {
	transport, err := asks.transport()
	if err != nil {
		return nil, err
	}
	token, err := asks.token()
	client := &http.Client{Transport: transport, Timeout: scrapeWithin, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &scraper{from: from, instance: in, token: token, client: client}, err
}

// all asks every process at once, so that one that hangs holds up the others for no longer than one answer may take.
func (s *scraper) all(ctx context.Context) []scrape {
	out := make([]scrape, len(s.from))
	var wg sync.WaitGroup
	for i, from := range s.from {
		wg.Go(func() {
			p, err := s.one(ctx, from)
			out[i] = scrape{from: from, at: time.Now(), err: err, page: p}
		})
	}
	wg.Wait()
	return out
}

func (s *scraper) one(ctx context.Context, from string) (page, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	authorize(req, s.token)
	res, err := s.client.Do(req)
	if err != nil {
		return nil, withoutAddress(err)
	}
	defer res.Body.Close()
	if err := checkResponder(s.instance, res); err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusUnauthorized {
		return nil, fmt.Errorf("answers %s: give a token with --token-file or %s", res.Status, tokenVariable)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answers %s", res.Status)
	}
	return parsePage(io.LimitReader(res.Body, maxPage))
}

// withoutAddress leaves out of an error the address, which stands beside it already.
func withoutAddress(err error) error {
	var request *url.Error
	var network *net.OpError
	switch {
	case errors.As(err, &network):
		return network.Err
	case errors.As(err, &request):
		return request.Err
	}
	return err
}

func parsePage(r io.Reader) (page, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return nil, fmt.Errorf("is no page of metrics: %w", err)
	}
	if _, ok := families["postern_build_info"]; !ok {
		return nil, errors.New("is no page of Postern's metrics")
	}
	return families, nil
}

// metricsURL completes an address: http:// and /metrics may be left out.
func metricsURL(address string) (string, error) {
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", usagef("--from %q is no URL of metrics: write e.g. http://127.0.0.1:8081/metrics", address)
	}
	u.Path = cmp.Or(strings.TrimSuffix(u.Path, "/"), "/metrics")
	return u.String(), nil
}

// value adds up a counter or gauge over the series that have all the given labels (name, value, ...); ok is false where there is none.
func (p page) value(name string, labels ...string) (sum float64, ok bool) {
	for _, m := range p[name].GetMetric() {
		if hasLabels(m, labels) {
			sum, ok = sum+plainValue(m), true
		}
	}
	return sum, ok
}

// plainValue is that of a counter, a gauge or what has no type.
func plainValue(m *dto.Metric) float64 {
	return m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
}

func hasLabels(m *dto.Metric, labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		if label(m, labels[i]) != labels[i+1] {
			return false
		}
	}
	return true
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// histogram is one of a page, all its series together.
type histogram struct {
	// counts are cumulative, by the upper bounds of the same index; the last bound is +Inf.
	bounds, counts []float64
	sum, count     float64
}

func (p page) histogram(name string) histogram {
	var h histogram
	for _, m := range p[name].GetMetric() {
		d := m.GetHistogram()
		one := histogram{sum: d.GetSampleSum(), count: float64(d.GetSampleCount())}
		for _, b := range d.GetBucket() {
			one.bounds, one.counts = append(one.bounds, b.GetUpperBound()), append(one.counts, float64(b.GetCumulativeCount()))
		}
		h = h.plus(one, 1)
	}
	return h
}

// plus adds another's counts, times sign; one with other bounds cannot be added and is left out.
func (h histogram) plus(other histogram, sign float64) histogram {
	if len(other.bounds) == 0 {
		return h
	}
	if len(h.bounds) == 0 {
		h = histogram{bounds: other.bounds, counts: make([]float64, len(other.counts))}
	}
	if len(h.bounds) != len(other.bounds) {
		return h
	}
	counts := make([]float64, len(h.counts))
	for i := range counts {
		if h.bounds[i] != other.bounds[i] {
			return h
		}
		counts[i] = h.counts[i] + sign*other.counts[i]
	}
	return histogram{bounds: h.bounds, counts: counts, sum: h.sum + sign*other.sum, count: h.count + sign*other.count}
}
