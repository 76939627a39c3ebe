package postgres

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the system account of the private cluster. PostgreSQL does not run as root.
type account struct {
	name     string
	uid, gid int
}

// serverAccount returns nil where the server may use the account of this process.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.Atoi(u.Uid)
		gid, errGID := strconv.Atoi(u.Gid)
		if err := errors.Join(errUID, errGID); err != nil {
			return nil, fmt.Errorf("read account %s: %w", name, err)
		}
		return &account{name: name, uid: uid, gid: gid}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and this machine has neither an account postgres nor " +
		"nobody for it")
}

// credential is nil for the account of this process.
func (a *account) credential() *syscall.Credential {
	if a == nil {
		return nil
	}
	return &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
}

// createPrivateDir creates a directory that only the server's account and root can enter.
func (a *account) createPrivateDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if a != nil {
		if err := os.Chown(dir, a.uid, a.gid); err != nil {
			return err
		}
	}
	return os.Chmod(dir, 0o700)
}

// ClusterDir returns the directory for a private cluster: the wanted one, unless this process is
// root and the server's account cannot enter one of its parents (for example root's home). Then it
// is a directory in /var/tmp whose name is derived from the wanted path, so that the next start
// finds it again.
func ClusterDir(want string) (dir string, moved bool, err error) {
	want, err = filepath.Abs(want)
	if err != nil {
		return "", false, fmt.Errorf("choose cluster directory: %w", err)
	}
	acc, err := serverAccount()
	if err != nil {
		return "", false, err
	}
	if acc == nil || acc.canReach(filepath.Dir(want)) {
		return want, false, nil
	}
	if real, err := filepath.EvalSymlinks(filepath.Dir(want)); err == nil {
		// the real path, so that a folder has one cluster whatever link leads to it
		want = filepath.Join(real, filepath.Base(want))
	}
	sum := sha256.Sum256([]byte(want))
	dir = filepath.Join("/var/tmp", "postern-"+acc.name+"-"+hex.EncodeToString(sum[:6]))
	return dir, true, acc.checkOwner(dir)
}

// canReach reports whether the account can enter a directory and every existing parent. Parts that
// do not exist are created so that it can.
func (a *account) canReach(dir string) bool {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	for {
		info, err := os.Stat(dir)
		if err == nil && !a.canEnter(info) || err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return true
		}
		dir = parent
	}
}

func (a *account) canEnter(info fs.FileInfo) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	mode := info.Mode().Perm()
	switch {
	case !ok:
		return mode&0o001 != 0
	case int(owner.Uid) == a.uid:
		return mode&0o100 != 0
	case int(owner.Gid) == a.gid:
		return mode&0o010 != 0
	}
	return mode&0o001 != 0
}

// checkOwner rejects a directory in a world-writable place that belongs to another account.
func (a *account) checkOwner(dir string) error {
	info, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("choose cluster directory: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || ok && int(owner.Uid) != a.uid && owner.Uid != 0 {
		return fmt.Errorf("choose cluster directory: %s does not belong to %s or root; remove it", dir, a.name)
	}
	return nil
}
