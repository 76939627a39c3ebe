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

// lookEvery is how often, at most, the files of a certificate are looked at.
const lookEvery = time.Second

// certificates are the files of a TLS listener as they were read last. Where new ones cannot be read, the old go on.
type certificates struct {
	files  config.AdminTLS
	logger *slog.Logger

	mu     sync.Mutex
	looked time.Time
	seen   [3]sighting
	use    *tls.Config
	// told are the files whose fault is in the log already.
	told [3]sighting
}

// sighting is what tells one content of a file from another.
type sighting struct {
	modified time.Time
	size     int64
}

// adminTLS reads the files now, and again at the first connection after one of them has changed.
func adminTLS(files config.AdminTLS, logger *slog.Logger) (*tls.Config, error) {
	c := &certificates{files: files, logger: logger, looked: time.Now(), seen: sight(files)}
	var err error
	if c.use, err = readTLS(files); err != nil {
		return nil, fmt.Errorf("admin.tls: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current(), nil }}, nil
}

func sight(files config.AdminTLS) (seen [3]sighting) {
	for i, path := range []string{files.Cert, files.Key, files.ClientCA} {
		if info, err := os.Stat(path); err == nil {
			seen[i] = sighting{info.ModTime(), info.Size()}
		}
	}
	return seen
}

// current is the configuration for a new connection.
func (c *certificates) current() *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < lookEvery {
		return c.use
	}
	c.looked = time.Now()
	seen := sight(c.files)
	if seen == c.seen {
		return c.use
	}
	next, err := readTLS(c.files)
	if err != nil { // perhaps only one of the files is written yet: the next look reads them again
		if seen != c.told {
			c.logger.Error("admin certificate not read again, the old one goes on", "error", err)
		}
		c.told = seen
		return c.use
	}
	c.seen, c.use = seen, next
	c.logger.Info("admin certificate read again")
	return c.use
}

func readTLS(files config.AdminTLS) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}}
	if files.ClientCA == "" {
		return out, nil
	}
	pem, err := os.ReadFile(files.ClientCA)
	if err != nil {
		return nil, err
	}
	out.ClientCAs = x509.NewCertPool()
	if !out.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, errors.New(files.ClientCA + " holds no certificate")
	}
	out.ClientAuth = tls.RequireAndVerifyClientCert
	return out, nil
}
