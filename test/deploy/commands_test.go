package deploy_test

import (
	"path/filepath"
	"strings"
	"testing"
)

// commands are what every file of deploy/ starts of ours, by where it says so.
func commands(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for name, s := range readCompose(t).Services {
		if s.ours() && name != "postern" {
			out["compose.yaml: "+name] = s.Command
		}
		if test := s.Healthcheck.Test; s.ours() && len(test) > 1 {
			out["compose.yaml: health of "+name] = test[1:]
		}
	}
	for key, p := range readCluster(t).pods() {
		out["kubernetes: "+key] = p.Spec.Containers[0].Args
	}
	for _, name := range units {
		command := strings.ReplaceAll(readUnit(t, name).one(t, "Service.ExecStart"), "%i", "0")
		out["systemd: "+name] = strings.Fields(command)
	}
	return out
}

// checkCommands has the programs read their flags, which they do before they print help.
func (img *image) checkCommands(t *testing.T) {
	all := commands(t)
	all["Containerfile"] = img.config.Config.Cmd
	// Four services of compose.yaml and the health of three, three pods, three units, and the image's own.
	if len(all) != 14 {
		t.Errorf("%d commands, want 14: %v", len(all), all)
	}
	for where, command := range all {
		program := filepath.Base(command[0])
		out := runs(t, img.command(program, append(command[1:], "--help")...))
		if !strings.Contains(out, "Usage") {
			t.Errorf("%s: %v --help says %s", where, command, out)
		}
	}
}
