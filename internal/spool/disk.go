package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Disk is the folder of a spool. Tests use one that loses unsynced data, as a power failure does.
type Disk interface {
	// Names returns the names of the files, in any order.
	Names() ([]string, error)
	// Create creates a new file, Open opens an existing one; both for reading and writing.
	Create(name string) (File, error)
	Open(name string) (File, error)
	Rename(from, to string) error
	Remove(name string) error
	// Sync makes the set of files and their names durable.
	Sync() error
	// Close unlocks the folder for other processes.
	Close() error
}

// File is a file of a Disk.
type File interface {
	readable
	io.WriterAt
	io.Closer
	// Sync makes the written data durable. An error does not tell which data was lost.
	Sync() error
}

// ErrInUse means that another process uses the folder.
var ErrInUse = errors.New("another process uses it")

const lockName = "lock"

type folder struct {
	path string
	lock *os.File
}

// OpenFolder opens a folder and locks it for this process; it creates a missing one. The file
// system must not be in memory. Errors: ErrInUse.
func OpenFolder(path string) (Disk, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("create the spool's folder: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the spool's folder: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("lock the spool's folder %s: %w (each gateway needs its own folder): %w", path, ErrInUse,
			err)
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
