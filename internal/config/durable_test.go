package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
)

// No address may want commits that are not durable, however it is written.
func TestDurabilityIsNoSetting(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"postgres://u@h/d?synchronous_commit=off", "postgres://u@h/d?options=-c%20synchronous_commit%3Doff", "postgres://u@h/d?options=--Synchronous-Commit%3dlocal",
		"postgres://u@h/d?options=-c%20synchronous%5fcommit%3Doff", "host=h dbname=d synchronous_commit=off",
		"postgres://u@h/d?options=-c%20default%5ftransaction_isolation%3Dserializable",
	} {
		for _, setting := range []string{"url", "maintenance_url"} {
			text := fmt.Sprintf("database: {url: 'postgres://u@h/d', %s: '%s'}\n", setting, address)
			if setting == "url" {
				text = fmt.Sprintf("database: {url: '%s'}\n", address)
			}
			_, err := config.Parse([]byte(text), environment())
			if err == nil || !strings.Contains(err.Error(), "database."+setting+": names ") {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
}
