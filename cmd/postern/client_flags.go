package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// tokenVariable is the environment variable with the token for an admin address, used if no file is
// given.
const tokenVariable = "POSTERN_ADMIN_TOKEN"

// clientFlags are the flags of commands that send HTTP requests to a process.
type clientFlags struct{ ca, cert, key, tokenFile string }

func (a *clientFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.ca, "ca", "",
		"`file` of the certificate authorities of the process (default: the system's)")
	cmd.Flags().StringVar(&a.cert, "cert", "", "`file` of the client certificate, if the process requires one")
	cmd.Flags().StringVar(&a.key, "key", "", "`file` of the client certificate's key")
}

// addTokenFlag is for commands whose requests may need a token. There is no flag for the token
// itself, because the process list would show it.
func (a *clientFlags) addTokenFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.tokenFile, "token-file", "", "`file` of the token (default: "+tokenVariable+
		"); it is sent over HTTPS and to loopback addresses only")
}

// transport connects directly, without a proxy from the environment.
func (a *clientFlags) transport() (*http.Transport, error) {
	conf := &tls.Config{MinVersion: tls.VersionTLS12}
	if a.ca != "" {
		pem, err := os.ReadFile(a.ca)
		if err != nil {
			return nil, fmt.Errorf("read --ca: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usagef("--ca %s holds no certificate", a.ca)
		}
	}
	switch {
	case (a.cert == "") != (a.key == ""):
		return nil, usagef("--cert and --key go together")
	case a.cert != "":
		cert, err := tls.LoadX509KeyPair(a.cert, a.key)
		if err != nil {
			return nil, fmt.Errorf("read --cert and --key: %w", err)
		}
		conf.Certificates = []tls.Certificate{cert}
	}
	return &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true}, nil
}

// newClient returns a client that follows no redirects. A nil transport uses the proxy of the
// environment. 0 is no timeout.
func newClient(transport http.RoundTripper, timeout time.Duration) *http.Client {
	return &http.Client{Transport: transport, Timeout: timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// token returns the token to send, or "".
func (a *clientFlags) token() (string, error) {
	if a.tokenFile == "" {
		return strings.TrimSpace(os.Getenv(tokenVariable)), nil
	}
	b, err := os.ReadFile(a.tokenFile)
	if err != nil {
		return "", fmt.Errorf("read --token-file: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// authorize sends the token only over HTTPS or to a loopback address. The token never crosses the
// network in clear text.
func authorize(req *http.Request, token string) {
	ip := net.ParseIP(req.URL.Hostname())
	if token != "" && (req.URL.Scheme == "https" || req.URL.Hostname() == "localhost" || ip != nil && ip.IsLoopback()) {
		req.Header.Set("Authorization", "Bearer "+token)
	}
}

// parseURL reads an HTTP address. The error shows the example.
func parseURL(address, example string) (*url.URL, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, usagef("%q is not a valid URL: use e.g. %s", address, example)
	}
	return u, nil
}
