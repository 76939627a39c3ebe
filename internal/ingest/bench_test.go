package ingest_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/stream"
)

// BenchmarkDelivery is a delivery's whole way through the gateway's code and net/http's, but for publishing: 64 connections, 2.4 KB.
func BenchmarkDelivery(b *testing.B) {
	bundle := setup(b, func(o *ingest.Options) { o.Publish = func(...stream.Event) {} })
	var next atomic.Int64
	b.SetParallelism(32)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		c, err := net.Dial("tcp", strings.TrimPrefix(bundle.url, "http://"))
		if err != nil {
			b.Error(err)
			return
		}
		defer c.Close()
		in := bufio.NewReader(c)
		for pb.Next() {
			if err := exchange(c, in, rawDelivery(b, next.Add(1))); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// rawDelivery is a signed request as bytes.
func rawDelivery(tb testing.TB, n int64) []byte {
	tb.Helper()
	at := time.Now()
	body := fmt.Sprintf(`{"id":"evt_%d","object":"event","api_version":"2026-09-30.basil","created":%d,"type":"customer.updated","data":{"object":{"id":"cus_%d","object":"customer","metadata":{%s}}},"livemode":false}`,
		n, at.Unix(), n, filler)
	d, err := stripe.Stripe{}.Sign(&provider.Source{Secrets: []provider.Secret{{Value: []byte(stripeSecret)}}}, provider.Sample{Body: []byte(body)}, at)
	if err != nil {
		tb.Fatal(err)
	}
	return fmt.Appendf(nil, "POST /webhooks/stripe HTTP/1.1\r\nHost: hooks.example\r\nUser-Agent: Stripe/1.0\r\nContent-Type: application/json\r\nStripe-Signature: %s\r\nContent-Length: %d\r\n\r\n%s",
		d.Header.Get("Stripe-Signature"), len(d.Body), d.Body)
}

var filler = func() string {
	var members []string
	for i := range 40 {
		members = append(members, fmt.Sprintf(`"key_%02d":"%040d"`, i, i))
	}
	return strings.Join(members, ",")
}()

// exchange sends a request and reads past its answer.
func exchange(c net.Conn, in *bufio.Reader, request []byte) error {
	if _, err := c.Write(request); err != nil {
		return err
	}
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d: %w", resp.StatusCode, err)
	}
	return nil
}
