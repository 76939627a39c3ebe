package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// diskBytes is the size of the small disk: room for some files of a spool.
const diskBytes = 96 << 20

// smallDisk is a disk of its own for a spool, so that it can be filled; only root can have one.
type smallDisk struct {
	mounted string
	// spool is a folder on it; "" where there is no such disk.
	spool string
}

func mountSmallDisk(below string) (*smallDisk, error) {
	if os.Geteuid() != 0 {
		return &smallDisk{}, nil
	}
	dir := filepath.Join(below, "disk")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", diskBytes))
	if errors.Is(err, syscall.EPERM) { // root of a container
		return &smallDisk{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("mount a small disk: %w", err)
	}
	return &smallDisk{mounted: dir, spool: filepath.Join(dir, "spool")}, nil
}

func (d *smallDisk) remove() {
	if d.mounted != "" {
		_ = syscall.Unmount(d.mounted, syscall.MNT_DETACH) // in memory, and of nobody else's
	}
}
