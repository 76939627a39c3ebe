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
	scrapeTimeout = 2 * time.Second
	maxPageBytes  = 16 << 20
)

// scrapeResult is the response of one process at one time; err says why there is no page.
type scrapeResult struct {
	address string
	at      time.Time
	err     error
	page    metricFamilies
}

// metricFamilies maps the names of metrics to their families.
type metricFamilies map[string]*dto.MetricFamily

// scraper reads the metrics of processes.
type scraper struct {
	client    *http.Client
	token     string
	addresses []string
	// instance is the instance that every address must belong to; nil allows any.
	instance *config.Instance
}

func newScraper(from []string, in *config.Instance, flags *clientFlags) (*scraper, error) {
	transport, err := flags.transport()
	if err != nil {
		return nil, err
	}
	token, err := flags.token()
	client := &http.Client{Transport: transport, Timeout: scrapeTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &scraper{addresses: from, instance: in, token: token, client: client}, err
}

// scrapeAll reads all processes concurrently, so that a process that does not respond delays the
// result by one timeout only.
func (s *scraper) scrapeAll(ctx context.Context) []scrapeResult {
	out := make([]scrapeResult, len(s.addresses))
	var wg sync.WaitGroup
	for i, from := range s.addresses {
		wg.Go(func() {
			p, err := s.scrapeOne(ctx, from)
			out[i] = scrapeResult{address: from, at: time.Now(), err: err, page: p}
		})
	}
	wg.Wait()
	return out
}

func (s *scraper) scrapeOne(ctx context.Context, from string) (metricFamilies, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	authorize(req, s.token)
	res, err := s.client.Do(req)
	if err != nil {
		return nil, stripAddress(err)
	}
	defer res.Body.Close()
	if err := checkResponder(s.instance, res); err != nil {
		return nil, err
	}
	if res.StatusCode == http.StatusUnauthorized {
		return nil, fmt.Errorf("responds with %s: give a token with --token-file or %s", res.Status, tokenVariable)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("responds with %s", res.Status)
	}
	return parsePage(io.LimitReader(res.Body, maxPageBytes))
}

// stripAddress removes the address from an error, because the output shows it anyway.
func stripAddress(err error) error {
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

func parsePage(r io.Reader) (metricFamilies, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return nil, fmt.Errorf("the response is not a page of metrics: %w", err)
	}
	if _, ok := families["postern_build_info"]; !ok {
		return nil, errors.New("the response is not a page of Postern's metrics")
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
		return "", usagef("--from %q is not a valid URL: use e.g. http://127.0.0.1:8081/metrics", address)
	}
	u.Path = cmp.Or(strings.TrimSuffix(u.Path, "/"), "/metrics")
	return u.String(), nil
}

// value adds up a counter or gauge over the series with all the given labels (name, value, ...); ok
// is false if there is none.
func (p metricFamilies) value(name string, labels ...string) (sum float64, ok bool) {
	for _, m := range p[name].GetMetric() {
		if hasLabels(m, labels) {
			sum, ok = sum+metricValue(m), true
		}
	}
	return sum, ok
}

// metricValue returns the value of a counter, a gauge or an untyped metric.
func metricValue(m *dto.Metric) float64 {
	return m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
}

func hasLabels(m *dto.Metric, labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		if labelValue(m, labels[i]) != labels[i+1] {
			return false
		}
	}
	return true
}

func labelValue(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// histogram is a histogram of a page, with all its series added up.
type histogram struct {
	// counts are cumulative, by the upper bounds of the same index; the last bound is +Inf.
	bounds, counts []float64
	sum, count     float64
}

func (p metricFamilies) histogram(name string) histogram {
	var h histogram
	for _, m := range p[name].GetMetric() {
		d := m.GetHistogram()
		one := histogram{sum: d.GetSampleSum(), count: float64(d.GetSampleCount())}
		for _, b := range d.GetBucket() {
			one.bounds, one.counts = append(one.bounds, b.GetUpperBound()),
				append(one.counts, float64(b.GetCumulativeCount()))
		}
		h = h.addScaled(one, 1)
	}
	return h
}

// addScaled adds another histogram's counts times sign. It ignores one with other bounds.
func (h histogram) addScaled(other histogram, sign float64) histogram {
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
	return histogram{bounds: h.bounds, counts: counts, sum: h.sum + sign*other.sum, count: h.count +
		sign*other.count}
}
