// Package rates reads the metrics of processes and computes rates over an interval, without a
// Prometheus. `postern top` shows them.
package rates

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

const maxPageBytes = 16 << 20

// Scrape is the response of one process at one time.
type Scrape struct {
	Address string
	At      time.Time
	// Err says why there is no page.
	Err  error
	Page *Page
}

// Scraper reads the metrics of processes.
type Scraper struct {
	// Client follows no redirects and has a timeout.
	Client *http.Client
	// Addresses are the complete addresses of the pages.
	Addresses []string
	// Authorize adds credentials to a request; nil adds none.
	Authorize func(*http.Request)
	// Check returns an error for a response that is from another process; nil allows any.
	Check func(*http.Response) error
}

// ScrapeAll reads all processes concurrently, so that a process that does not respond delays the
// result by one timeout only. The result has the order of the addresses.
func (s *Scraper) ScrapeAll(ctx context.Context) []Scrape {
	out := make([]Scrape, len(s.Addresses))
	var wg sync.WaitGroup
	for i, from := range s.Addresses {
		wg.Go(func() {
			p, err := s.scrapeOne(ctx, from)
			out[i] = Scrape{Address: from, At: time.Now(), Err: err, Page: p}
		})
	}
	wg.Wait()
	return out
}

func (s *Scraper) scrapeOne(ctx context.Context, from string) (*Page, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/plain;version=0.0.4")
	if s.Authorize != nil {
		s.Authorize(req)
	}
	res, err := s.Client.Do(req)
	if err != nil {
		return nil, stripAddress(err)
	}
	defer res.Body.Close()
	if s.Check != nil {
		if err := s.Check(res); err != nil {
			return nil, err
		}
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("responds with %s", res.Status)
	}
	return ParsePage(io.LimitReader(res.Body, maxPageBytes))
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
