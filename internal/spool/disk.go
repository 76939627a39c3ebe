package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Disk is the folder that a spool is kept in. Tests put one in the place of the real one that forgets, as a power cut does, what was not synced.
type Disk interface {
	// Names are the files of the folder, in any order.
	Names() ([]string, error)
	// Create makes a file that is not there yet, Open one that is; both for reading and writing.
	Create(name string) (File, error)
	Open(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// Sync makes durable which files there are, and under which names.
	Sync() error
	// Close gives the folder free for another process.
	Close() error
}

// File is a file of a Disk.
type File interface {
	readable
	io.WriterAt
	io.Closer
	// Sync makes durable what was written; an error says nothing about what was lost.
	Sync() error
}

// ErrInUse: another process has the folder.
var ErrInUse = errors.New("another process uses it")

const lockName = "lock"

type folder struct {
	path string
	lock *os.File
}

// Folder opens, and makes if there is none, a folder on a file system that only one process uses. It must not lie in memory. Errors: ErrInUse.
func Folder(path string) (Disk, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the spool's folder: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the spool's folder: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("lock the spool's folder %s: %w (each gateway needs one of its own): %w", path, ErrInUse, err)
	}
	return &folder{path: path, lock: lock}, nil
}

func (f *folder) Names() ([]string, error) {
	entries, err := os.ReadDir(f.path)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, err
}

func (f *folder) Create(name string) (File, error) {
	return f.open(name, os.O_CREATE|os.O_EXCL|os.O_RDWR)
}

func (f *folder) Open(name string) (File, error) { return f.open(name, os.O_RDWR) }

func (f *folder) open(name string, flags int) (File, error) {
	opened, err := os.OpenFile(filepath.Join(f.path, name), flags, 0o600)
	if err != nil {
		return nil, err
	}
	return file{opened}, nil
}

func (f *folder) Rename(from, to string) error {
	return os.Rename(filepath.Join(f.path, from), filepath.Join(f.path, to))
}

func (f *folder) Remove(name string) error { return os.Remove(filepath.Join(f.path, name)) }

func (f *folder) Sync() error {
	dir, err := os.Open(f.path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (f *folder) Close() error { return f.lock.Close() }

type file struct{ *os.File }

func (f file) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func (f file) Sync() error { return syncData(f.File) }
