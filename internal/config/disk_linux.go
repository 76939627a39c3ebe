package config

import "syscall"

// Kinds of file systems, as statfs(2) numbers them.
const (
	tmpfs   = 0x01021994
	ramfs   = 0x858458f6
	overlay = 0x794c7630
)

// diskOf is what a folder lies on.
func diskOf(folder string) (disk, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(folder, &s); err != nil {
		return disk{}, err
	}
	kind := uint32(s.Type)
	return disk{memory: kind == tmpfs || kind == ramfs, layer: kind == overlay, free: int64(s.Bavail) * int64(s.Bsize)}, nil
}
