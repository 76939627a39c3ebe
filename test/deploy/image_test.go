package deploy_test

import (
	"crypto/x509"
	"debug/buildinfo"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

const (
	// account is whom the image's programs run as.
	account = 65532
	// stateFolder is the one folder of the image that is its account's.
	stateFolder = "/var/lib/postern"
	// largest is the most bytes the image may have: the three programs are about 30 MB each.
	largest = 128 << 20
)

// buildImage makes the image as `make image` does, in a store of its own.
func buildImage(t *testing.T) *image {
	t.Helper()
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Fatal("buildah is missing: run `make prerequisites`, or on Debian as root: apt-get install buildah")
	}
	dir := t.TempDir()
	archive := filepath.Join(dir, "postern.tar")
	cmd := exec.CommandContext(t.Context(), "deploy/container/build.sh", "oci-archive:"+archive+":postern")
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "GOARCH="+runtime.GOARCH,
		"ENGINE=buildah --storage-driver vfs --root "+filepath.Join(dir, "root")+" --runroot "+filepath.Join(dir, "run"))
	runs(t, cmd)
	return unpack(t, archive)
}

func (img *image) path(name string) string { return filepath.Join(img.rootfs, name) }

// The image is what its Containerfile promises, and it works: a signed delivery to its gateway is applied by its processor.
func TestImage(t *testing.T) {
	t.Parallel()
	img := buildImage(t)
	t.Run("config", img.checkConfig)
	t.Run("files", img.checkFiles)
	t.Run("programs", img.checkPrograms)
	t.Run("authorities", func(t *testing.T) {
		if !x509.NewCertPool().AppendCertsFromPEM([]byte(read(t, img.path("etc/ssl/certs/ca-certificates.crt")))) {
			t.Error("no certificate authority in it")
		}
	})
	t.Run("commands", img.checkCommands)
	t.Run("works", img.checkWorks)
}

func (img *image) checkConfig(t *testing.T) {
	c := img.config.Config
	if c.User != "65532:65532" || c.WorkingDir != stateFolder || !slices.Contains(c.Env, "PATH=/bin") || len(c.Entrypoint) > 0 {
		t.Errorf("user %q, folder %q, environment %q, entrypoint %q", c.User, c.WorkingDir, c.Env, c.Entrypoint)
	}
	if len(c.Cmd) == 0 || img.files[strings.TrimPrefix(c.Cmd[0], "/")] == nil {
		t.Errorf("the image does not have its own command %q", c.Cmd)
	}
	if img.config.Architecture != runtime.GOARCH {
		t.Errorf("made for %s on %s", img.config.Architecture, runtime.GOARCH)
	}
	revision := "unknown"
	git := exec.CommandContext(t.Context(), "git", "rev-parse", "--verify", "HEAD")
	git.Dir = top
	if out, err := git.Output(); err == nil {
		revision = strings.TrimSpace(string(out))
	}
	for label, want := range map[string]string{"title": "Postern", "licenses": "Apache-2.0", "revision": revision} {
		if got := c.Labels["org.opencontainers.image."+label]; got != want {
			t.Errorf("label %s is %q, want %q", label, got, want)
		}
	}
	info, err := buildinfo.ReadFile(img.path("bin/gateway"))
	if err != nil {
		t.Fatal(err)
	}
	stamped := "unknown"
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			stamped = s.Value
		}
	}
	if stamped != revision {
		t.Errorf("the gateway says it is of revision %s, want %s", stamped, revision)
	}
}

// Nothing is in the image but the programs and what they read, and nothing of it can be changed by whom they run as.
func (img *image) checkFiles(t *testing.T) {
	want := []string{"bin/gateway", "bin/postern", "bin/processor", "etc/group", "etc/passwd", "etc/ssl/certs/ca-certificates.crt"}
	if img.files[strings.TrimPrefix(stateFolder, "/")] == nil {
		t.Errorf("no folder %s, whose owner an empty volume would take", stateFolder)
	}
	var files []string
	for name, h := range img.files {
		switch {
		case "/"+name == stateFolder:
			if h.Uid != account || h.Mode&0o777 != 0o700 {
				t.Errorf("%s: of %d, mode %o", name, h.Uid, h.Mode)
			}
		case h.Uid != 0 || h.Mode&0o022 != 0:
			t.Errorf("%s: of %d, mode %o", name, h.Uid, h.Mode)
		}
		if info, err := os.Stat(img.path(name)); err == nil && !info.IsDir() {
			files = append(files, name)
		}
	}
	if slices.Sort(files); !slices.Equal(files, want) {
		t.Errorf("files %q, want %q", files, want)
	}
	if t.Logf("%d bytes", img.bytes); img.bytes > largest {
		t.Errorf("%d bytes, want at most %d", img.bytes, largest)
	}
}

// A program that asked for a loader would not start where there is none.
func (img *image) checkPrograms(t *testing.T) {
	for _, program := range []string{"gateway", "processor", "postern"} {
		f, err := elf.Open(img.path("bin/" + program))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range f.Progs {
			if part.Type == elf.PT_INTERP || part.Type == elf.PT_DYNAMIC {
				t.Errorf("%s is linked dynamically: %s", program, part.Type)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
