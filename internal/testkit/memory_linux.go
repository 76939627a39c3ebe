package testkit

import (
	"os"
	"syscall"
)

const (
	memory = "/dev/shm"
	// tmpfs is what statfs(2) calls a file system in memory.
	tmpfs = 0x01021994
	// roomy is what several packages' clusters together stay far below, in bytes.
	roomy = 4 << 30
)

// scratch is where clusters lie: in memory where there is room, for making and dropping a database is some hundred files each, and on a disk costs ten times the
// processor time; else among the temporary files.
func scratch() string {
	var fs syscall.Statfs_t
	if syscall.Statfs(memory, &fs) != nil || fs.Type != tmpfs || fs.Bavail*uint64(fs.Bsize) < roomy || syscall.Access(memory, 0o3) != nil {
		return os.TempDir()
	}
	return memory
}
