package deploy_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
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
		"ENGINE=buildah --storage-driver vfs --root "+filepath.Join(dir, "root")+" --runroot "+
			filepath.Join(dir, "run"))
	runs(t, cmd)
	return unpack(t, archive)
}

func (img *image) path(name string) string { return filepath.Join(img.rootfs, name) }

// The image is what its Containerfile promises, and it works: a signed delivery to its gateway is
// applied by its processor.
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
	if c.User != "65532:65532" || c.WorkingDir != stateFolder || !slices.Contains(c.Env, "PATH=/bin") ||
		len(c.Entrypoint) > 0 {
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
	must(t, err)
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

// Nothing is in the image but the programs and what they read, and nothing of it can be changed by
// whom they run as.
func (img *image) checkFiles(t *testing.T) {
	want := []string{"bin/gateway", "bin/postern", "bin/processor", "etc/group", "etc/passwd",
		"etc/ssl/certs/ca-certificates.crt"}
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
		must(t, err)
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
	// Four services of compose.yaml and the health of three, three pods, three units, and the
	// image's own.
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

// image is an image as a container engine would see it.
type image struct {
	config struct {
		Architecture string
		Config       struct {
			User, WorkingDir     string
			Env, Entrypoint, Cmd []string
			Labels, Annotations  map[string]string
			ExposedPorts         map[string]struct{}
		}
	}
	// bytes is the size of all layers, not compressed.
	bytes int64
	// files are the paths of the image, with what owns them.
	files map[string]*tar.Header
	// rootfs is where they are unpacked.
	rootfs string
}

// descriptor names a part of an image.
type descriptor struct{ Digest string }

// unpack reads an OCI archive and unpacks its layers.
func unpack(t *testing.T, archive string) *image {
	t.Helper()
	layout := t.TempDir()
	each(t, archive, func(h *tar.Header, content io.Reader) {
		if h.Typeflag == tar.TypeReg {
			place(t, layout, h.Name, 0o600, content)
		}
	})
	blob := func(d descriptor) string {
		return filepath.Join(layout, "blobs", strings.Replace(d.Digest, ":", "/", 1))
	}
	var index struct{ Manifests []descriptor }
	decode(t, filepath.Join(layout, "index.json"), &index)
	if len(index.Manifests) != 1 {
		t.Fatalf("%d manifests, want one", len(index.Manifests))
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	decode(t, blob(index.Manifests[0]), &manifest)
	img := &image{files: map[string]*tar.Header{}, rootfs: t.TempDir()}
	decode(t, blob(manifest.Config), &img.config)
	for _, layer := range manifest.Layers {
		each(t, blob(layer), func(h *tar.Header, content io.Reader) { img.add(t, h, content) })
	}
	return img
}

func decode(t *testing.T, path string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(read(t, path)), v); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// each reads a tar file, compressed or not.
func each(t *testing.T, path string, visit func(*tar.Header, io.Reader)) {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	buffered := bufio.NewReader(f)
	var content io.Reader = buffered
	if magic, err := buffered.Peek(2); err == nil && bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		if content, err = gzip.NewReader(buffered); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		visit(h, r)
	}
}

// add unpacks one entry of a layer. The image has files and folders only; anything else is a
// surprise.
func (img *image) add(t *testing.T, h *tar.Header, content io.Reader) {
	t.Helper()
	name := strings.Trim(filepath.Clean("/"+h.Name), "/")
	img.files[name] = h
	switch h.Typeflag {
	case tar.TypeReg:
		img.bytes += place(t, img.rootfs, name, os.FileMode(h.Mode)&0o777, content)
	case tar.TypeDir:
		must(t, os.MkdirAll(filepath.Join(img.rootfs, name), os.FileMode(h.Mode)&0o777|0o700))
	default:
		t.Errorf("%s: neither file nor folder (type %q)", h.Name, h.Typeflag)
	}
	if os.Geteuid() != 0 {
		return // whoever unpacks owns all of it
	}
	must(t, os.Lchown(filepath.Join(img.rootfs, name), h.Uid, h.Gid))
}

// place writes a file below dir and returns its size.
func place(t *testing.T, dir, name string, mode os.FileMode, content io.Reader) int64 {
	t.Helper()
	path := filepath.Join(dir, filepath.Clean("/"+name))
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	must(t, err)
	n, err := io.Copy(f, content)
	must(t, errors.Join(err, f.Close()))
	return n
}
