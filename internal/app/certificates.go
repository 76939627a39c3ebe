package app

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/config"
)

// checkInterval is the minimum time between two checks of the certificate files.
const checkInterval = time.Second

// certificates are the certificate files of a TLS listener as last read. If new files cannot be
// read, the old certificate stays in use.
type certificates struct {
	files  config.AdminTLS
	logger *slog.Logger

	mu          sync.Mutex
	checkedAt   time.Time
	loadedState [3]fileState
	tlsConfig   *tls.Config
	// reportedState are the files whose error is already logged.
	reportedState [3]fileState
}

// fileState identifies a version of a file.
type fileState struct {
	modified time.Time
	size     int64
}

// adminTLS reads the files now, and again at the first connection after a file has changed.
func adminTLS(files config.AdminTLS, logger *slog.Logger) (*tls.Config, error) {
	c := &certificates{files: files, logger: logger, checkedAt: time.Now(), loadedState: readFileStates(files)}
	var err error
	if c.tlsConfig, err = readTLS(files); err != nil {
		return nil, fmt.Errorf("admin.tls: %w", err)
	}
	forClient := func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current(), nil }
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: forClient}, nil
}

func readFileStates(files config.AdminTLS) (states [3]fileState) {
	for i, path := range []string{files.Cert, files.Key, files.ClientCA} {
		if info, err := os.Stat(path); err == nil {
			states[i] = fileState{info.ModTime(), info.Size()}
		}
	}
	return states
}

// current returns the configuration for a new connection.
func (c *certificates) current() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.checkedAt) < checkInterval {
		return c.tlsConfig
	}
	c.checkedAt = time.Now()
	states := readFileStates(c.files)
	if states == c.loadedState {
		return c.tlsConfig
	}
	next, err := readTLS(c.files)
	if err != nil { // Perhaps only one of the files is written yet; the next check reads them again.
		if states != c.reportedState {
			c.logger.Error("cannot read the changed admin certificate, the old one stays in use", "error", err)
		}
		c.reportedState = states
		return c.tlsConfig
	}
	c.loadedState, c.tlsConfig = states, next
	c.logger.Info("admin certificate reloaded")
	return c.tlsConfig
}

func readTLS(files config.AdminTLS) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert},
		NextProtos: []string{"h2", "http/1.1"}}
	if files.ClientCA == "" {
		return out, nil
	}
	pem, err := os.ReadFile(files.ClientCA)
	if err != nil {
		return nil, err
	}
	out.ClientCAs = x509.NewCertPool()
	if !out.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, errors.New(files.ClientCA + " contains no certificate")
	}
	out.ClientAuth = tls.RequireAndVerifyClientCert
	return out, nil
}
