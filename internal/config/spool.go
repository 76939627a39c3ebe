package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/settings"
)

// disk describes the file system of a folder.
type disk struct {
	// inMemory: the data is lost when the machine stops. containerLayer: the data is lost with the
	// container.
	inMemory, containerLayer bool
	// freeBytes is the free space for this account.
	freeBytes int64
}

// CheckSpool requires an absolute path to a folder that survives a restart of the machine. The
// error is a Problem. It creates nothing.
func CheckSpool(s Spool) error {
	if s.Dir == "" {
		return nil
	}
	if !filepath.IsAbs(s.Dir) {
		return &settings.Problem{Path: "ingest.spool.dir",
			Msg: fmt.Sprintf("%s depends on the folder in which the process starts, but the spool must always be the "+
				"same folder: write an absolute path, e.g. /var/lib/postern/spool",
				s.Dir)}
	}
	if reason := volatileReason(s.Dir); reason != "" && !s.UnsafeDir {
		return &settings.Problem{Path: "ingest.spool.dir",
			Msg: fmt.Sprintf("%s is %s, so acknowledged deliveries are lost when the machine stops: name a folder on "+
				"a disk, or set ingest.spool.unsafe_dir: true to accept that",
				s.Dir,
				reason)}
	}
	return nil
}

// volatileReason says why a folder does not survive a restart of the machine; "" where it does.
func volatileReason(dir string) string {
	existing := nearestExisting(dir)
	if on, err := statDisk(existing); err == nil && on.inMemory {
		return "in memory (tmpfs)"
	}
	if existing == "/tmp" || strings.HasPrefix(existing, "/tmp/") {
		return "in /tmp, which is emptied at a start of the machine"
	}
	return ""
}

// nearestExisting returns the folder, or its nearest existing and readable parent, with links
// resolved.
func nearestExisting(dir string) string {
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		if resolved, err := filepath.EvalSymlinks(dir); err == nil || dir == filepath.Dir(dir) {
			return resolved
		}
	}
}

// UnsafeSettings returns the enabled settings that give up a guarantee.
func (c *Config) UnsafeSettings() []string {
	var on []string
	if c.Ingest.Spool.UnsafeDir {
		on = append(on, "ingest.spool.unsafe_dir")
	}
	return on
}

// Warnings returns messages about valid settings that are probably not intended. Each is a sentence
// that names its setting. They depend on the current state of the disks.
func (c *Config) Warnings() []string {
	out := slices.Clone(c.unusedVariables)
	for _, name := range c.UnsafeSettings() {
		out = append(out, name+" is on: acknowledged deliveries may be lost")
	}
	out = append(out, c.unboundedReadWarnings()...)
	out = append(out, c.verificationWarnings()...)
	s := c.Ingest.Spool
	on, err := statDisk(nearestExisting(s.Dir))
	if s.Dir == "" || err != nil {
		return out
	}
	if need := int64(s.MaxBytes) - usedBytes(s.Dir); on.freeBytes < need {
		out = append(out, fmt.Sprintf("ingest.spool.dir: %d MiB are free for %s, but %d MiB may be needed: free "+
			"space, or lower ingest.spool.max_bytes (%s); deliveries that do not fit get status 503",
			on.freeBytes>>20, s.Dir, need>>20, s.MaxBytes))
	}
	if on.containerLayer {
		out = append(out, fmt.Sprintf("ingest.spool.dir: %s is in the container's own layer, which is deleted with "+
			"the container: mount a volume there", s.Dir))
	}
	return out
}

// usedBytes returns the size of the files of a spool; 0 where this account may not read the folder.
func usedBytes(dir string) (sum int64) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, f := range files {
		if info, err := f.Info(); err == nil {
			sum += info.Size()
		}
	}
	return sum
}
