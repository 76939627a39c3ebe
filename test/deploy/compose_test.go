package deploy_test

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
)

// composeFile has the parts of compose.yaml whose errors would only show in use.
type composeFile struct {
	Services map[string]*composeService
	Networks map[string]any
	Volumes  map[string]any
	Secrets  map[string]struct{ File string }
}

type composeService struct {
	Image       string
	Command     []string
	User        string
	Environment map[string]string
	DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
	Healthcheck struct{ Test []string }
	Networks    []string
	Volumes     []struct{ Type, Source, Target string }
	Secrets     []composeSecret
	ReadOnly    bool     `yaml:"read_only"`
	CapDrop     []string `yaml:"cap_drop"`
	StopGrace   string   `yaml:"stop_grace_period"`
}

// composeSecret is a name, or a source and a target.
type composeSecret struct{ Source, Target string }

func (s *composeSecret) UnmarshalYAML(unmarshal func(any) error) error {
	if unmarshal(&s.Source) == nil {
		s.Target = s.Source
		return nil
	}
	var long struct{ Source, Target string }
	err := unmarshal(&long)
	s.Source, s.Target = long.Source, long.Target
	return err
}

func readCompose(t *testing.T) *composeFile {
	t.Helper()
	return &documents[composeFile](t, deployed("compose", "compose.yaml"), false)[0]
}

// isPostern reports whether a service runs one of our programs.
func (s *composeService) isPostern() bool { return strings.Contains(s.Image, "POSTERN_IMAGE") }

func TestCompose_references_exist(t *testing.T) {
	t.Parallel()
	file, secrets := readCompose(t), allSecrets(t)
	for name, s := range file.Services {
		for other := range s.DependsOn {
			if file.Services[other] == nil {
				t.Errorf("%s depends on %s, which does not exist", name, other)
			}
		}
		for _, network := range s.Networks {
			if _, ok := file.Networks[network]; !ok {
				t.Errorf("%s: no network %s", name, network)
			}
		}
		for _, v := range s.Volumes {
			if _, ok := file.Volumes[v.Source]; v.Type == "volume" && !ok {
				t.Errorf("%s: no volume %s", name, v.Source)
			}
			if v.Type == "bind" {
				read(t, deployed("compose", v.Source))
			}
		}
		for _, one := range s.Secrets {
			if path, ok := strings.CutPrefix(file.Secrets[one.Source].File, "secrets/"); !ok {
				t.Errorf("%s: no secret %s", name, one.Source)
			} else {
				read(t, filepath.Join(secrets, path))
			}
		}
		if s.isPostern() && (!s.ReadOnly || !cmp.Equal(s.CapDrop,
			[]string{"ALL"}) || s.StopGrace != "20s" || s.User != "") {
			t.Errorf("%s: read-only %t, dropped %v, stop within %s, user %q", name, s.ReadOnly, s.CapDrop, s.StopGrace,
				s.User)
		}
	}
}

// Each daemon's configuration is valid with the files that are mounted for it. The commands for the
// database have no secrets of the daemons.
func TestCompose_configurations_areValid(t *testing.T) {
	t.Parallel()
	file, secrets := readCompose(t), allSecrets(t)
	seen := 0
	for name, s := range file.Services {
		if !s.isPostern() {
			continue
		}
		seen++
		c := container{name: name, env: s.Environment, mounts: map[string]string{}}
		for _, one := range s.Secrets {
			c.mounts["/run/secrets/"+one.Target] = filepath.Join(secrets,
				strings.TrimPrefix(file.Secrets[one.Source].File, "secrets/"))
		}
		for _, v := range s.Volumes {
			if v.Target == "/etc/postern/postern.yaml" {
				c.config = read(t, deployed("compose", v.Source))
			}
		}
		c.check(t)
		if daemon := strings.HasPrefix(name, "gateway") || name == "processor"; daemon != (c.config != "") {
			t.Errorf("%s: configuration mounted: %t", name, !daemon)
		}
	}
	if seen != 5 {
		t.Errorf("%d services run our programs, want gateway-1, gateway-2, processor, migrate and postern", seen)
	}
}

// The health checks and Caddy use the addresses on which the programs listen.
func TestCompose_addresses_matchListeners(t *testing.T) {
	t.Parallel()
	file := readCompose(t)
	for name, address := range map[string]string{"gateway-1": config.DefaultAdminListen,
		"gateway-2": config.DefaultAdminListen,
		"processor": config.DefaultProcessorListen} {
		want := []string{"CMD", "/bin/postern", "health", "--url", "http://" + address + "/readyz"}
		if diff := cmp.Diff(want, file.Services[name].Healthcheck.Test); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	const gateways = "gateway-1:8080 gateway-2:8080"
	if got := file.Services["caddy"].Environment["POSTERN_GATEWAYS"]; got != gateways {
		t.Errorf("Caddy balances over %s, want %s", got, gateways)
	}
	for _, name := range []string{"gateway-1", "gateway-2"} {
		if got := strings.Join(file.Services[name].Command, " "); !strings.Contains(got, "--listen :8080") {
			t.Errorf("%s runs %s", name, got)
		}
	}
}

// Each gateway has its own volume for its spool. It is mounted at a folder that belongs to the
// image's account, because a new volume gets the owner of that folder.
func TestCompose_spools_outliveContainers(t *testing.T) {
	t.Parallel()
	var spools []spoolPlace
	for name, s := range readCompose(t).Services {
		if !s.isPostern() || s.Command[0] != "gateway" {
			continue
		}
		one := spoolPlace{gateway: name, dir: s.Environment[spoolVariable]}
		for _, v := range s.Volumes {
			if v.Type == "volume" && v.Target == stateFolder {
				one.storage, one.folder = v.Source, v.Target
			}
		}
		spools = append(spools, one)
	}
	checkSpools(t, spools)
}

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
			t.Errorf("%s: %q is not a setting", name, line)
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

// specifiers returns the replacements of systemd's specifiers in an instance of a unit.
func specifiers(instance string) *strings.Replacer {
	return strings.NewReplacer("%d", "/run/credentials", "%i", instance, "%S", "/var/lib")
}

var units = []string{"postern-gateway@.service", "postern-processor@.service", "postern.service"}

// A unit gives its program enough time to stop, and enough files for its connections.
func TestUnits_settings_fitDefaults(t *testing.T) {
	t.Parallel()
	var defaults config.Config
	defaults.Complete()
	for _, name := range units {
		u := readUnit(t, name)
		for key, want := range map[string]string{"Service.Restart": "always", "Service.KillSignal": "SIGTERM",
			"Service.NoNewPrivileges": "yes", "Service.ProtectSystem": "strict", "Service.DynamicUser": "yes",
			"Service.SupplementaryGroups": "postern", "Unit.StartLimitIntervalSec": "0",
			"Service.ExecReload": "/bin/kill -HUP $MAINPID", "Install.WantedBy": "multi-user.target"} {
			if got := u.one(t, key); got != want {
				t.Errorf("%s: %s is %q, want %q", name, key, got, want)
			}
		}
		if stop, err := time.ParseDuration(u.one(t, "Service.TimeoutStopSec")); err != nil ||
			stop <= defaults.Ingest.DrainDelay+app.StopTimeout {
			t.Errorf("%s: %s to stop (%v), and the program takes up to %s", name, stop, err, defaults.Ingest.DrainDelay+
				app.StopTimeout)
		}
		if name == "postern-processor@.service" {
			continue // the processor accepts no deliveries
		}
		if files, err := strconv.Atoi(u.one(t, "Service.LimitNOFILE")); err != nil ||
			files < 2*defaults.Ingest.MaxConnections {
			t.Errorf("%s: %d files (%v) for %d connections", name, files, err, defaults.Ingest.MaxConnections)
		}
	}
}

// Each unit's configuration is valid with the credentials that the unit provides.
func TestUnits_configurations_areValid(t *testing.T) {
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
				t.Errorf("%s: credential %s is read from %s", name, id, path)
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
		if command := strings.Fields(u.one(t, "Service.ExecStart")); !slices.Contains(command,
			"/etc/postern/postern.yaml") {
			t.Errorf("%s runs %v", name, command)
		}
	}
}

// Each instance of the gateway has its own folder. systemd creates it for the instance's account
// only, and keeps it.
func TestUnits_spools_outliveProcesses(t *testing.T) {
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
	checkSpools(t, spools)
}

// spoolVariable is the variable with the folder of a gateway's spool.
const spoolVariable = "POSTERN_INGEST_SPOOL_DIR"

// spoolPlace is the folder of a gateway's spool, and the folder of persistent storage that must
// contain it.
type spoolPlace struct{ gateway, storage, folder, dir string }

// checkSpools checks that each gateway keeps its spool in persistent storage that no other gateway
// uses.
func checkSpools(t *testing.T, places []spoolPlace) {
	t.Helper()
	owner := map[string]string{}
	for _, p := range places {
		if p.storage == "" || p.folder == "" || !strings.HasPrefix(p.dir, p.folder+"/") {
			t.Errorf("gateway %s has its spool in %q, which is not below %q, where %q is", p.gateway, p.dir, p.folder,
				p.storage)
		}
		if other, taken := owner[p.storage]; taken {
			t.Errorf("gateways %s and %s share %s: the second one to start finds its spool in use", other, p.gateway,
				p.storage)
		}
		owner[p.storage] = p.gateway
	}
	if len(places) < 2 {
		t.Errorf("%d gateways, want two", len(places))
	}
}
