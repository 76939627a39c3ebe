package testkit

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/migrations"
)

// PrepareCluster fills the directory of a new cluster with a copy of the template: the data of a
// stopped cluster whose database "postern" is migrated. Making these data costs four times the
// processor time of the copy, and every package with a database needs them.
func PrepareCluster(ctx context.Context, dir string) (err error) {
	parent, err := buildDir()
	if err != nil {
		return err
	}
	name, err := templateName(filepath.Dir(filepath.Dir(parent)))
	if err != nil {
		return err
	}
	unlock, err := lock(filepath.Join(parent, ".postgres.lock"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	template := filepath.Join(parent, name)
	switch _, err := os.Stat(template); {
	case errors.Is(err, fs.ErrNotExist):
		return makeTemplate(ctx, dir, template)
	case err != nil:
		return err
	}
	// PostgreSQL may run as another account, which must be able to enter the parents.
	if err := errors.Join(os.MkdirAll(filepath.Dir(dir), 0o755), os.Mkdir(dir, 0o700)); err != nil {
		return err
	}
	return copyTree(ctx, template, filepath.Join(dir, "data"))
}

// templateName returns a name that changes with the migrations in this program, with the code that
// makes a cluster, and with PostgreSQL's version.
func templateName(root string) (string, error) {
	version, err := postgres.ServerVersion()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	code := os.DirFS(filepath.Join(root, "internal", "postgres"))
	if err := errors.Join(addFiles(h, migrations.Files, "*.sql"), addFiles(h, code, "*.go")); err != nil {
		return "", err
	}
	return fmt.Sprintf("postgres-%d-%x", version, h.Sum(nil)[:6]), nil
}

// addFiles adds the files of a folder that match a pattern, except tests.
func addFiles(to io.Writer, folder fs.FS, pattern string) error {
	files, err := fs.Glob(folder, pattern)
	if err != nil {
		return err
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := fs.ReadFile(folder, file)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(to, "%s %d\n%s", file, len(text), text); err != nil {
			return err
		}
	}
	return nil
}

// makeTemplate makes the data of a cluster and copies them to the template, in place of an older
// template.
func makeTemplate(ctx context.Context, dir, template string) error {
	pg, err := postgres.StartCluster(ctx, postgres.ClusterOptions{Dir: dir, Fast: true})
	if err != nil {
		return err
	}
	_, err = postgres.Migrate(ctx, pg.URL())
	if err := errors.Join(err, pg.Stop(ctx)); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(filepath.Dir(template), "postgres-*"))
	if err != nil {
		return err
	}
	for _, dir := range old {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	unfinished := template + ".new"
	if err := copyTree(ctx, filepath.Join(dir, "data"), unfinished); err != nil {
		return err
	}
	return os.Rename(unfinished, template)
}

// copyTree copies a directory with the owners and modes of its files.
func copyTree(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w\n%s", from, err, out)
	}
	return nil
}
