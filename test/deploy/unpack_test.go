package deploy_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
	if err != nil {
		t.Fatal(err)
	}
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

// add unpacks one entry of a layer. The image has files and folders only; anything else is a surprise.
func (img *image) add(t *testing.T, h *tar.Header, content io.Reader) {
	t.Helper()
	name := strings.Trim(filepath.Clean("/"+h.Name), "/")
	img.files[name] = h
	switch h.Typeflag {
	case tar.TypeReg:
		img.bytes += place(t, img.rootfs, name, os.FileMode(h.Mode)&0o777, content)
	case tar.TypeDir:
		if err := os.MkdirAll(filepath.Join(img.rootfs, name), os.FileMode(h.Mode)&0o777|0o700); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s: neither file nor folder (type %q)", h.Name, h.Typeflag)
	}
	if os.Geteuid() != 0 {
		return // whoever unpacks owns all of it
	}
	if err := os.Lchown(filepath.Join(img.rootfs, name), h.Uid, h.Gid); err != nil {
		t.Fatal(err)
	}
}

// place writes a file below dir and returns its size.
func place(t *testing.T, dir, name string, mode os.FileMode, content io.Reader) int64 {
	t.Helper()
	path := filepath.Join(dir, filepath.Clean("/"+name))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(f, content)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return n
}
