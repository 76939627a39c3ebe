package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

// tokenVariable has the token of whoever asks an admin address, where no file does.
const tokenVariable = "POSTERN_ADMIN_TOKEN"

// asking are the flags of commands that ask a process over HTTP.
type asking struct{ ca, cert, key, tokenFile string }

func (a *asking) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.ca, "ca", "", "`file` of the authorities that a process's certificate is of (default: the system's)")
	cmd.Flags().StringVar(&a.cert, "cert", "", "`file` of our certificate, where the process asks for one")
	cmd.Flags().StringVar(&a.key, "key", "", "`file` of our certificate's key")
}

// tokenFlag is for commands that ask for what a token may be needed for. There is no flag for the token itself: the list of processes would show it.
func (a *asking) tokenFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.tokenFile, "token-file", "", "`file` of the token (default: "+tokenVariable+"); it is sent over HTTPS and to loopback addresses only")
}

// transport asks without a proxy of the environment: processes are near.
func (a *asking) transport() (*http.Transport, error) {
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

// token is what to send; "" where there is none.
func (a *asking) token() (string, error) {
	if a.tokenFile == "" {
		return strings.TrimSpace(os.Getenv(tokenVariable)), nil
	}
	b, err := os.ReadFile(a.tokenFile)
	if err != nil {
		return "", fmt.Errorf("read --token-file: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// authorize sends a token where nobody between can read it.
func authorize(req *http.Request, token string) {
	ip := net.ParseIP(req.URL.Hostname())
	if token != "" && (req.URL.Scheme == "https" || req.URL.Hostname() == "localhost" || ip != nil && ip.IsLoopback()) {
		req.Header.Set("Authorization", "Bearer "+token)
	}
}
