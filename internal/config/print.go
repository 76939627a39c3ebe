package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"

	"github.com/goccy/go-yaml"
)

// Format prints a secret's name, whatever the verb. It masks the values that were read from a
// variable or file, too.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "secret "+s.Name) }

// String returns the complete configuration as YAML, with all secrets and passwords masked.
func (c *Config) String() string {
	b, err := yaml.Marshal(c)
	if err != nil {
		return "config: " + err.Error()
	}
	return string(b)
}

// Digest returns a digest of the sections that a process reloads, without secrets. It does not
// change with the value of a secret.
func (c *Config) Digest() string {
	reloaded := Config{Sources: c.Sources, Schedules: c.Schedules, Destinations: c.Destinations, Effects: c.Effects,
		Notify: c.Notify, Forward: c.Forward}
	sum := sha256.Sum256([]byte(reloaded.String()))
	return hex.EncodeToString(sum[:8])
}

// LogValue logs the settings that distinguish one process from another, with secrets and passwords
// masked.
func (c *Config) LogValue() slog.Value {
	return slog.GroupValue(slog.String("database", c.Database.URL.String()), slog.String("nats", c.NATS.URL.String()),
		slog.String("listen", c.Ingest.Listen), slog.Int("sources", len(c.Sources)))
}
