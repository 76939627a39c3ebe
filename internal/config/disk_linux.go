package config

import "syscall"

// Kinds of file systems, as statfs(2) numbers them.
const (
	tmpfs   = 0x01021994
	ramfs   = 0x858458f6
	overlay = 0x794c7630
)

// statDisk returns the kind of file system, and the free space, of a folder.
func statDisk(folder string) (disk, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(folder, &s); err != nil {
		return disk{}, err
	}
	kind := uint32(s.Type)
	return disk{inMemory: kind == tmpfs || kind == ramfs, containerLayer: kind == overlay,
			freeBytes: int64(s.Bavail) * int64(s.Bsize)},
		nil
}
