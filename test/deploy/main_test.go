// Package deploy_test tests the files of deploy/. The image is built, unpacked and run. Other files
// are read by the programs that use them, or compared with the flags, settings and names of our
// programs.
package deploy_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/goccy/go-yaml"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// top is the root folder of the checkout.
const top = "../.."

// deployed returns the path of a file below deploy/.
func deployed(parts ...string) string {
	return filepath.Join(append([]string{top, "deploy"}, parts...)...)
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	testkit.Must(t, err)
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o644))
}

// runs runs a program and returns its output. The test fails if the program fails.
func runs(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
}

// documents decodes the documents of a YAML file, each into a T.
func documents[T any](t *testing.T, path string, strict bool) []T {
	t.Helper()
	var options []yaml.DecodeOption
	if strict {
		options = append(options, yaml.Strict())
	}
	var out []T
	for d := yaml.NewDecoder(bytes.NewReader([]byte(read(t, path))), options...); ; {
		var one T
		err := d.Decode(&one)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		out = append(out, one)
	}
}

// container is the environment of one of our programs.
type container struct {
	name string
	// config is the configuration's text, "" where it has none.
	config string
	env    map[string]string
	// mounts has files of this machine by their path in the container.
	mounts map[string]string
}

// check loads the configuration as the program does. Every variable must belong to a setting, every
// file must be mounted, and every login must have a password.
func (c *container) check(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	place := map[string]string{}
	for inside, file := range c.mounts {
		place[inside] = filepath.Join(dir, strings.ReplaceAll(inside, "/", "_"))
		write(t, place[inside], read(t, file))
	}
	paths := slices.Sorted(maps.Keys(place))
	slices.Reverse(paths) // of two paths with the same beginning, the longer comes first
	var pairs []string
	for _, inside := range paths {
		pairs = append(pairs, inside, place[inside])
	}
	moved := strings.NewReplacer(pairs...)
	asked := map[string]bool{}
	env := func(name string) string {
		asked[name] = true
		return moved.Replace(c.env[name])
	}
	got, err := config.Parse([]byte(moved.Replace(c.config)), env)
	if err != nil {
		t.Errorf("%s: %v", c.name, err)
		return
	}
	for name := range c.env {
		if strings.HasPrefix(name, "POSTERN_") && !asked[name] {
			t.Errorf("%s: no setting has the variable %s", c.name, name)
		}
	}
	for _, u := range []settings.URL{got.Database.URL, got.Database.MaintenanceURL} {
		if err := hasPassword(string(u)); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// hasPassword returns an error unless the password file of a URL has a line for its login.
func hasPassword(database string) error {
	if database == "" {
		return nil
	}
	u, err := url.Parse(database)
	if err != nil {
		return err
	}
	passwords, err := os.ReadFile(u.Query().Get("passfile"))
	if err != nil {
		return err
	}
	if !strings.Contains(string(passwords), ":"+u.User.Username()+":") {
		return fmt.Errorf("the password file of %s has no line for it", u.User.Username())
	}
	return nil
}

// scriptsSecrets runs deploy/secrets.sh, which runs deploy/certificates.sh. The tests share its
// files, because each certificate takes several processes.
var scriptsSecrets = sync.OnceValues(func() (fstest.MapFS, error) {
	dir, err := os.MkdirTemp("", "postern-deploy-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if out, err := exec.Command(deployed("secrets.sh"), dir).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("secrets.sh: %w\n%s", err, out)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := fstest.MapFS{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		files[e.Name()] = &fstest.MapFile{Data: text}
	}
	return files, nil
})

// allSecrets returns a folder with the secrets of secrets.sh, and the one that the provider issues.
func allSecrets(t *testing.T) string {
	t.Helper()
	files, err := scriptsSecrets()
	testkit.Must(t, err)
	dir := t.TempDir()
	testkit.Must(t, os.CopyFS(dir, files))
	write(t, filepath.Join(dir, "stripe"), secret+"\n")
	return dir
}
