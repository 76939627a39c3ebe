package deploy_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/config"
)

// composeFile is the part of compose.yaml that can be wrong in a way that only shows when it is used.
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

// composeSecret is written as a name, or as a source and a target.
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

// ours tells whether a service runs one of our programs.
func (s *composeService) ours() bool { return strings.Contains(s.Image, "POSTERN_IMAGE") }

func TestComposeNamesWhatIsThere(t *testing.T) {
	t.Parallel()
	file, secrets := readCompose(t), allSecrets(t)
	for name, s := range file.Services {
		for other := range s.DependsOn {
			if file.Services[other] == nil {
				t.Errorf("%s depends on %s, which there is not", name, other)
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
		if s.ours() && (!s.ReadOnly || !cmp.Equal(s.CapDrop, []string{"ALL"}) || s.StopGrace != "20s" || s.User != "") {
			t.Errorf("%s: read-only %t, dropped %v, stop within %s, user %q", name, s.ReadOnly, s.CapDrop, s.StopGrace, s.User)
		}
	}
}

// Each daemon can use its configuration with what is mounted for it and nothing else; the databases' command has no secret of theirs.
func TestComposeConfigurations(t *testing.T) {
	t.Parallel()
	file, secrets := readCompose(t), allSecrets(t)
	seen := 0
	for name, s := range file.Services {
		if !s.ours() {
			continue
		}
		seen++
		c := container{name: name, env: s.Environment, mounts: map[string]string{}}
		for _, one := range s.Secrets {
			c.mounts["/run/secrets/"+one.Target] = filepath.Join(secrets, strings.TrimPrefix(file.Secrets[one.Source].File, "secrets/"))
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

// The health checks and Caddy ask where the programs listen.
func TestComposeAsksTheRightAddresses(t *testing.T) {
	t.Parallel()
	file := readCompose(t)
	for name, address := range map[string]string{"gateway-1": config.DefaultAdminListen, "gateway-2": config.DefaultAdminListen,
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

// Each gateway has a volume of its own for its spool, at the folder of the image that belongs to its account: an empty volume is made with what is there.
func TestComposeKeepsSpools(t *testing.T) {
	t.Parallel()
	var spools []spoolPlace
	for name, s := range readCompose(t).Services {
		if !s.ours() || s.Command[0] != "gateway" {
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
	if err := checkSpools(spools); err != nil {
		t.Error(err)
	}
}
