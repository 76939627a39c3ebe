package deploy_test

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
)

// unit is a systemd unit's settings by section and name.
type unit map[string][]string

func readUnit(t *testing.T, name string) unit {
	t.Helper()
	u, section := unit{}, ""
	for line := range strings.Lines(read(t, deployed("systemd", name))) {
		line = strings.TrimSpace(line)
		switch key, value, found := strings.Cut(line, "="); {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = strings.Trim(line, "[]")
		case found:
			u[section+"."+key] = append(u[section+"."+key], value)
		default:
			t.Errorf("%s: %q is no setting", name, line)
		}
	}
	return u
}

func (u unit) one(t *testing.T, key string) string {
	t.Helper()
	if len(u[key]) != 1 {
		t.Fatalf("%s is set %d times, want once", key, len(u[key]))
	}
	return u[key][0]
}

// specifiers are what systemd puts into a unit of an instance.
func specifiers(instance string) *strings.Replacer {
	return strings.NewReplacer("%d", "/run/credentials", "%i", instance, "%S", "/var/lib")
}

var units = []string{"postern-gateway@.service", "postern-processor@.service", "postern.service"}

// A unit stops its program no sooner than that needs, and gives it the files that its connections take.
func TestUnits(t *testing.T) {
	t.Parallel()
	var defaults config.Config
	defaults.Complete()
	for _, name := range units {
		u := readUnit(t, name)
		for key, want := range map[string]string{"Service.Restart": "always", "Service.KillSignal": "SIGTERM", "Service.NoNewPrivileges": "yes",
			"Service.ProtectSystem": "strict", "Service.DynamicUser": "yes", "Service.SupplementaryGroups": "postern", "Unit.StartLimitIntervalSec": "0",
			"Service.ExecReload": "/bin/kill -HUP $MAINPID", "Install.WantedBy": "multi-user.target"} {
			if got := u.one(t, key); got != want {
				t.Errorf("%s: %s is %q, want %q", name, key, got, want)
			}
		}
		if stop, err := time.ParseDuration(u.one(t, "Service.TimeoutStopSec")); err != nil || stop <= defaults.Ingest.DrainDelay+app.StopWithin {
			t.Errorf("%s: %s to stop (%v), and the program takes up to %s", name, stop, err, defaults.Ingest.DrainDelay+app.StopWithin)
		}
		if name == "postern-processor@.service" {
			continue // it takes no deliveries
		}
		if files, err := strconv.Atoi(u.one(t, "Service.LimitNOFILE")); err != nil || files < 2*defaults.Ingest.MaxConnections {
			t.Errorf("%s: %d files (%v) for %d connections", name, files, err, defaults.Ingest.MaxConnections)
		}
	}
}

// Each unit's program can use the configuration with what the unit hands it.
func TestUnitConfigurations(t *testing.T) {
	t.Parallel()
	secrets := allSecrets(t)
	for _, name := range units {
		u := readUnit(t, name)
		c := container{name: name, env: map[string]string{}, config: read(t, deployed("systemd", "postern.yaml")),
			mounts: map[string]string{"/etc/postern/signing/stripe": filepath.Join(secrets, "stripe")}}
		for _, given := range u["Service.LoadCredential"] {
			id, path, _ := strings.Cut(given, ":")
			file, ours := strings.CutPrefix(path, "/etc/postern/secrets/")
			if !ours {
				t.Errorf("%s: credential %s is of %s", name, id, path)
			}
			c.mounts["/run/credentials/"+id] = filepath.Join(secrets, file)
		}
		for _, line := range u["Service.Environment"] {
			for _, pair := range strings.Fields(line) {
				key, value, _ := strings.Cut(pair, "=")
				c.env[key] = specifiers("0").Replace(value)
			}
		}
		c.check(t)
		if command := strings.Fields(u.one(t, "Service.ExecStart")); !slices.Contains(command, "/etc/postern/postern.yaml") {
			t.Errorf("%s runs %v", name, command)
		}
	}
}

// Each instance of the gateway has a folder of its own, which systemd makes for its account, opens to it alone, and keeps.
func TestUnitsKeepSpools(t *testing.T) {
	t.Parallel()
	u := readUnit(t, "postern-gateway@.service")
	if mode := u.one(t, "Service.StateDirectoryMode"); mode != "0700" {
		t.Errorf("the folder's mode is %s", mode)
	}
	var spools []spoolPlace
	for _, instance := range []string{"0", "1"} {
		inside := specifiers(instance)
		folder := "/var/lib/" + inside.Replace(u.one(t, "Service.StateDirectory"))
		one := spoolPlace{gateway: instance, storage: folder, folder: folder}
		for _, line := range u["Service.Environment"] {
			if dir, ok := strings.CutPrefix(line, spoolVariable+"="); ok {
				one.dir = inside.Replace(dir)
			}
		}
		spools = append(spools, one)
	}
	if err := checkSpools(spools); err != nil {
		t.Error(err)
	}
}
