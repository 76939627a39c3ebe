package app_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/testkit"
)

func (b *testBundle) createToken(t *testing.T, role adminauth.Role) string {
	t.Helper()
	secret, _, err := adminauth.CreateToken(t.Context(), b.db.Role(t, "operator"), "one", role, "ada", time.Time{})
	testkit.Must(t, err)
	return secret
}

// A listener on another address than loopback starts only if there is a valid token, and then
// requires one.
func TestAdmin_otherAddressWithoutTokens_doesNotStart(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	for _, tc := range []struct {
		listen  string
		require bool
	}{{":0", false}, {"0.0.0.0:0", false}, {"[::]:0", false}, {"127.0.0.1:0", true}} {
		b.cfg.Admin.Listen, b.cfg.Admin.RequireTokens = tc.listen, tc.require
		a, err := app.New(t.Context(), app.Options{Config: b.cfg, Logger: slog.New(slog.DiscardHandler),
			Processor: true})
		if err == nil || !strings.Contains(err.Error(), "there is no valid token") ||
			!strings.Contains(err.Error(), "postern token create") {
			t.Errorf("%s: %v", tc.listen, err)
		}
		if err == nil {
			_ = a.Stop(t.Context()) // it has failed already
		}
	}
	secret := b.createToken(t, adminauth.Reader)
	b.cfg.Admin.Listen, b.cfg.Admin.RequireTokens = "0.0.0.0:0", false
	a := b.start(t, app.Options{Processor: true})
	_, port, err := net.SplitHostPort(a.AdminAddr())
	testkit.Must(t, err)
	for _, tc := range []struct {
		path, token string
		want        int
	}{{"/healthz", "", 200}, {"/metrics", "", 401}, {"/api/v1/events", "", 401}, {"/api/v1/events", secret, 200},
		{"/metrics", secret, 200}} {
		if got := status(t, http.DefaultClient, "http://127.0.0.1:"+port+tc.path, tc.token); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.path, got, tc.want)
		}
	}
}

func status(t *testing.T, client *http.Client, url, token string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	testkit.Must(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := client.Do(req)
	testkit.Must(t, err)
	_ = res.Body.Close() // only the status counts
	return res.StatusCode
}

// authority signs certificates for 127.0.0.1 and writes them into a folder.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	made int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir()}
	a.cert, a.key = a.make(t, "ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign})
	return a
}

// make writes NAME.crt and NAME.key.
func (a *authority) make(t *testing.T, name string, c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testkit.Must(t, err)
	a.made++
	c.SerialNumber, c.Subject = big.NewInt(a.made), pkix.Name{CommonName: name}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	testkit.Must(t, err)
	secret, err := x509.MarshalECPrivateKey(key)
	testkit.Must(t, err)
	for ext, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der},
		".key": {Type: "EC PRIVATE KEY", Bytes: secret}} {
		testkit.Must(t, os.WriteFile(filepath.Join(a.dir, name+ext), pem.EncodeToMemory(block), 0o600))
	}
	made, err := x509.ParseCertificate(der)
	testkit.Must(t, err)
	return made, key
}

func (a *authority) server(t *testing.T) {
	t.Helper()
	a.make(t, "server", &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// client trusts the authority, and uses a client certificate if one is named.
func (a *authority) client(t *testing.T, name string, versions ...uint16) *http.Client {
	t.Helper()
	conf := &tls.Config{RootCAs: x509.NewCertPool()}
	conf.RootCAs.AddCert(a.cert)
	if name != "" {
		cert, err := tls.LoadX509KeyPair(a.file(name+".crt"), a.file(name+".key"))
		testkit.Must(t, err)
		conf.Certificates = []tls.Certificate{cert}
	}
	for _, v := range versions {
		conf.MinVersion, conf.MaxVersion = v, v
	}
	transport := &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// serial returns the serial number of the server's certificate.
func serial(ctx context.Context, client *http.Client, url string) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	_ = res.Body.Close() // only the certificate counts
	return res.TLS.PeerCertificates[0].SerialNumber.Int64(), nil
}

// The certificate is read again when its files change. If they cannot be read, the old one stays in
// use.
func TestAdminTLS_changedFiles_areReadAgain(t *testing.T) {
	t.Parallel()
	b, ca := configured(t, nil), newAuthority(t)
	ca.server(t)
	first := ca.made
	b.cfg.Admin.TLS = config.AdminTLS{Cert: ca.file("server.crt"), Key: ca.file("server.key")}
	url := "https://" + b.start(t, app.Options{Processor: true}).AdminAddr() + "/healthz"
	if got, err := serial(t.Context(), ca.client(t, ""), url); err != nil || got != first {
		t.Fatalf("certificate %d, %v; want %d", got, err, first)
	}
	if _, err := serial(t.Context(), ca.client(t, "", tls.VersionTLS11), url); err == nil {
		t.Error("TLS 1.1 is accepted")
	}
	old := time.Now().Add(-time.Minute)
	testkit.Must(t, os.WriteFile(ca.file("server.key"), []byte("half a"), 0o600))
	testkit.Must(t, os.Chtimes(ca.file("server.key"), old, old))
	checks := time.NewTicker(100 * time.Millisecond) // longer than the interval between two checks of the files
	defer checks.Stop()
	for range 15 {
		<-checks.C
		if got, err := serial(t.Context(), ca.client(t, ""), url); err != nil || got != first {
			t.Fatalf("certificate %d, %v; want the old one, %d", got, err, first)
		}
	}
	ca.server(t)
	testkit.Eventually(t, 30*time.Second, func() error {
		got, err := serial(t.Context(), ca.client(t, ""), url)
		if err == nil && got != ca.made {
			err = fmt.Errorf("certificate %d, want %d", got, ca.made)
		}
		return err
	})
}

func TestAdminTLS_clientCA_requiresClientCertificate(t *testing.T) {
	t.Parallel()
	b, ca, other := configured(t, nil), newAuthority(t), newAuthority(t)
	ca.server(t)
	for _, a := range []*authority{ca, other} {
		a.make(t, "ada", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	}
	b.cfg.Admin.TLS = config.AdminTLS{Cert: ca.file("server.crt"), Key: ca.file("server.key"),
		ClientCA: ca.file("ca.crt")}
	b.cfg.Admin.RequireTokens = true
	secret := b.createToken(t, adminauth.Reader)
	url := "https://" + b.start(t, app.Options{Processor: true}).AdminAddr()
	if got := status(t, ca.client(t, "ada"), url+"/api/v1/events", secret); got != 200 {
		t.Errorf("with certificate and token: %d", got)
	}
	if got := status(t, ca.client(t, "ada"), url+"/api/v1/events", ""); got != 401 {
		t.Errorf("with a certificate alone: %d", got)
	}
	if _, err := serial(t.Context(), ca.client(t, ""), url+"/healthz"); err == nil {
		t.Error("a client without a certificate is accepted")
	}
	unauthenticated := ca.client(t, "")
	unauthenticated.Transport.(*http.Transport).TLSClientConfig.Certificates = other.client(t,
		"ada").Transport.(*http.Transport).TLSClientConfig.Certificates
	if _, err := serial(t.Context(), unauthenticated, url+"/healthz"); err == nil {
		t.Error("a certificate of another authority is accepted")
	}
}
