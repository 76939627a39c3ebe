package testkit

import (
	"os"
	"syscall"
)

const (
	memoryDir = "/dev/shm"
	// tmpfsMagic is the file system type that statfs(2) reports for a file system in memory.
	tmpfsMagic = 0x01021994
	// minFreeBytes is well above what the clusters of several packages need together.
	minFreeBytes = 4 << 30
)

// ScratchDir returns the directory for clusters. It is in memory if there is enough space, because
// each database has some hundred files. On a disk, creating and dropping them costs ten times the
// processor time.
func ScratchDir() string {
	var fs syscall.Statfs_t
	if syscall.Statfs(memoryDir, &fs) != nil || fs.Type != tmpfsMagic || fs.Bavail*uint64(fs.Bsize) < minFreeBytes ||
		syscall.Access(memoryDir, 0o3) != nil {
		return os.TempDir()
	}
	return memoryDir
}
