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

	"github.com/postern-gateway/postern/internal/testkit"
)

const (
	// account is the user id of the image's programs.
	account = 65532
	// stateFolder is the only folder that belongs to the account.
	stateFolder = "/var/lib/postern"
	// largest is the maximum size of the image. The three programs have about 30 MB each.
	largest = 128 << 20
)

// buildImage builds the image as `make image` does, in a separate store.
func buildImage(t *testing.T) *image {
	t.Helper()
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Fatal("buildah is missing: run `make prerequisites`, or on Debian as root: apt-get install buildah")
	}
	dir := t.TempDir()
	archive := filepath.Join(dir, "postern.tar")
	cmd := exec.CommandContext(t.Context(), "deploy/container/build.sh", "oci-archive:"+archive+":postern")
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "GOARCH="+runtime.GOARCH, "ENGINE=buildah --storage-driver vfs "+
		"--root "+filepath.Join(dir, "root")+" --runroot "+filepath.Join(dir, "run"))
	runs(t, cmd)
	return unpack(t, archive)
}

func (img *image) path(name string) string { return filepath.Join(img.rootfs, name) }

// The image is as its Containerfile describes, and works: its processor applies a signed delivery
// to its gateway.
func TestImage_builtImage_works(t *testing.T) {
	t.Parallel()
	img := buildImage(t)
	t.Run("config", img.checkConfig)
	t.Run("files", img.checkFiles)
	t.Run("programs", img.checkPrograms)
	t.Run("authorities", func(t *testing.T) {
		if !x509.NewCertPool().AppendCertsFromPEM([]byte(read(t, img.path("etc/ssl/certs/ca-certificates.crt")))) {
			t.Error("the image has no certificate authorities")
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
		t.Errorf("the image is built for %s on %s", img.config.Architecture, runtime.GOARCH)
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
	testkit.Must(t, err)
	stamped := "unknown"
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			stamped = s.Value
		}
	}
	if stamped != revision {
		t.Errorf("the gateway reports revision %s, want %s", stamped, revision)
	}
}

// The image has only the programs and the files that they read. Its account cannot change any of
// them.
func (img *image) checkFiles(t *testing.T) {
	want := []string{"bin/gateway", "bin/postern", "bin/processor", "etc/group", "etc/passwd",
		"etc/ssl/certs/ca-certificates.crt"}
	if img.files[strings.TrimPrefix(stateFolder, "/")] == nil {
		t.Errorf("no folder %s, from which a new volume would get its owner", stateFolder)
	}
	var files []string
	for name, h := range img.files {
		switch {
		case "/"+name == stateFolder:
			if h.Uid != account || h.Mode&0o777 != 0o700 {
				t.Errorf("%s: owner %d, mode %o", name, h.Uid, h.Mode)
			}
		case h.Uid != 0 || h.Mode&0o022 != 0:
			t.Errorf("%s: owner %d, mode %o", name, h.Uid, h.Mode)
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

// The image has no loader, so its programs must be linked statically.
func (img *image) checkPrograms(t *testing.T) {
	for _, program := range []string{"gateway", "processor", "postern"} {
		f, err := elf.Open(img.path("bin/" + program))
		testkit.Must(t, err)
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

// commands returns the commands that the files of deploy/ start, by their place.
func commands(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for name, s := range readCompose(t).Services {
		if s.isPostern() && name != "postern" {
			out["compose.yaml: "+name] = s.Command
		}
		if test := s.Healthcheck.Test; s.isPostern() && len(test) > 1 {
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

// checkCommands runs each command with --help, which checks its other flags first.
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

// image is an image as a container engine sees it.
type image struct {
	config struct {
		Architecture string
		Config       struct {
			User, WorkingDir     string
			Env, Entrypoint, Cmd []string
			Labels               map[string]string
		}
	}
	// bytes is the size of all layers, not compressed.
	bytes int64
	// files has the paths of the image and their owners.
	files map[string]*tar.Header
	// rootfs is the folder with the unpacked files.
	rootfs string
}

// descriptor identifies a part of an image.
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

// each calls visit for each entry of a tar file, compressed or not.
func each(t *testing.T, path string, visit func(*tar.Header, io.Reader)) {
	t.Helper()
	f, err := os.Open(path)
	testkit.Must(t, err)
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

// add unpacks one entry of a layer. The image may only have files and folders.
func (img *image) add(t *testing.T, h *tar.Header, content io.Reader) {
	t.Helper()
	name := strings.Trim(filepath.Clean("/"+h.Name), "/")
	img.files[name] = h
	switch h.Typeflag {
	case tar.TypeReg:
		img.bytes += place(t, img.rootfs, name, os.FileMode(h.Mode)&0o777, content)
	case tar.TypeDir:
		testkit.Must(t, os.MkdirAll(filepath.Join(img.rootfs, name), os.FileMode(h.Mode)&0o777|0o700))
	default:
		t.Errorf("%s: neither file nor folder (type %q)", h.Name, h.Typeflag)
	}
	if os.Geteuid() != 0 {
		return // the unpacked files belong to the account of the test
	}
	testkit.Must(t, os.Lchown(filepath.Join(img.rootfs, name), h.Uid, h.Gid))
}

// place writes a file below dir and returns its size.
func place(t *testing.T, dir, name string, mode os.FileMode, content io.Reader) int64 {
	t.Helper()
	path := filepath.Join(dir, filepath.Clean("/"+name))
	testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	testkit.Must(t, err)
	n, err := io.Copy(f, content)
	testkit.Must(t, errors.Join(err, f.Close()))
	return n
}
