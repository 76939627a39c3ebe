package app_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/testkit"
)

// certificate writes a certificate of 127.0.0.1 and its key, and gives what trusts it.
func certificate(t *testing.T) (files config.ServerTLS, trust *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files = config.ServerTLS{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	trust = x509.NewCertPool()
	for path, block := range map[string]*pem.Block{files.Cert: {Type: "CERTIFICATE", Bytes: cert}, files.Key: {Type: "PRIVATE KEY", Bytes: secret}} {
		text := pem.EncodeToMemory(block)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		trust.AppendCertsFromPEM(text)
	}
	return files, trust
}

// Requests of HTTP/2 that are begun and taken back at once, and more of them than a connection may carry, cost that connection alone.
func TestRapidResetsAreSurvived(t *testing.T) {
	t.Parallel()
	files, trust := certificate(t)
	b := abused(t, func(c *config.Config) { c.Ingest.TLS = files })
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: trust}}
	t.Cleanup(transport.CloseIdleConnections)
	deliver := func(n int) {
		t.Helper()
		d := b.sign(t, "stripe", "invoice.paid", n, time.Now())
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+b.app.Addr()+"/webhooks/stripe", bytes.NewReader(d.Body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = d.Header.Clone()
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if body, err := io.ReadAll(res.Body); res.StatusCode != 200 || res.ProtoMajor != 2 || err != nil {
			t.Fatalf("%s %d %s, %v", res.Proto, res.StatusCode, body, err)
		}
	}
	deliver(1)
	for _, reset := range []bool{true, false} {
		conn, err := tls.Dial("tcp", b.app.Addr(), &tls.Config{RootCAs: trust, NextProtos: []string{"h2"}})
		if err != nil {
			t.Fatal(err)
		}
		streams, refused, err := flood(conn, reset)
		t.Logf("reset %t: %d streams begun, %d refused, then %v", reset, streams, refused, err)
		if !reset && refused < streams-200 {
			t.Errorf("%d of %d streams at once were refused", refused, streams)
		}
		deliver(2)
		_ = conn.Close() // the gateway may have hung up
	}
	testkit.Eventually(t, time.Minute, func() error {
		if c := b.connections(t); c["open"] != 1 || c["served"] < 2 {
			return fmt.Errorf("%v", c)
		}
		return nil
	})
}

// flood begins many requests, none of which is ever whole, and takes each back or not. It tells how many it began until the server hung up, and how many of them were refused.
func flood(conn net.Conn, reset bool) (streams, refused int, err error) {
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return 0, 0, err
	}
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	framer := http2.NewFramer(conn, conn)
	ended := make(chan int, 1)
	const last = 2001
	go func() {
		n := 0
		defer func() { ended <- n }()
		for {
			f, err := framer.ReadFrame()
			if err != nil {
				return
			}
			if _, ok := f.(*http2.RSTStreamFrame); ok {
				n++
			}
			if f, ok := f.(*http2.PingFrame); ok && f.IsAck() {
				return
			}
		}
	}()
	var head bytes.Buffer
	encoder := hpack.NewEncoder(&head)
	for _, f := range []hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "postern"}, {Name: ":path", Value: "/webhooks/stripe"}} {
		if err := encoder.WriteField(f); err != nil {
			return 0, 0, err
		}
	}
	err = framer.WriteSettings()
	for id := uint32(1); id < 2*last && err == nil; id += 2 {
		if err = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head.Bytes(), EndHeaders: true}); err == nil && reset {
			err = framer.WriteRSTStream(id, http2.ErrCodeCancel)
		}
		streams++
	}
	if err == nil {
		err = framer.WritePing(false, [8]byte{1})
	}
	return streams, <-ended, err
}
