package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// diskBytes is the size of the small disk. It has space for some spool files.
const diskBytes = 96 << 20

// smallDisk is a separate disk for a spool, which can be filled. Only root can mount one.
type smallDisk struct {
	mounted string
	// spool is a folder on the disk, "" if there is no disk.
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
	if errors.Is(err, syscall.EPERM) { // root in a container may not mount
		return &smallDisk{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("mount a small disk: %w", err)
	}
	return &smallDisk{mounted: dir, spool: filepath.Join(dir, "spool")}, nil
}

func (d *smallDisk) remove() {
	if d.mounted != "" {
		_ = syscall.Unmount(d.mounted, syscall.MNT_DETACH) // a failure leaves only memory of this container in use
	}
}
