package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// disk is what a folder lies on.
type disk struct {
	// memory: it is lost with the machine. layer: it is a container's own, and goes with it.
	memory, layer bool
	// free is in bytes, for this account.
	free int64
}

// CheckSpool wants a folder that is the same wherever the process is started, and that a start of the machine leaves alone. The error is a Problem. Nothing is made.
func CheckSpool(s Spool) error {
	if s.Dir == "" {
		return nil
	}
	if !filepath.IsAbs(s.Dir) {
		return &Problem{Path: "ingest.spool.dir", Msg: fmt.Sprintf("%s depends on the folder the process is started in, and a spool must be found again: write the whole path, e.g. /var/lib/postern/spool", s.Dir)}
	}
	if why := lostAtStart(s.Dir); why != "" && !s.UnsafeDir {
		return &Problem{Path: "ingest.spool.dir", Msg: fmt.Sprintf("%s is %s, so what was acknowledged is lost with the machine: name a folder on a disk, or set ingest.spool.unsafe_dir: true if that may be lost", s.Dir, why)}
	}
	return nil
}

// lostAtStart says why a folder does not outlive a start of the machine; "" where it does.
func lostAtStart(dir string) string {
	there := existing(dir)
	if on, err := diskOf(there); err == nil && on.memory {
		return "in memory (tmpfs)"
	}
	if there == "/tmp" || strings.HasPrefix(there, "/tmp/") {
		return "in /tmp, which is emptied at a start"
	}
	return ""
}

// existing is the folder itself, or the nearest above it that there is and may be looked at, with no link in its path.
func existing(dir string) string {
	for dir = filepath.Clean(dir); ; dir = filepath.Dir(dir) {
		if resolved, err := filepath.EvalSymlinks(dir); err == nil || dir == filepath.Dir(dir) {
			return resolved
		}
	}
}

// Unsafe names the settings that give up a promise and are on.
func (c *Config) Unsafe() []string {
	var on []string
	if c.Ingest.Spool.UnsafeDir {
		on = append(on, "ingest.spool.unsafe_dir")
	}
	return on
}

// Warnings are what can be used, and is likely not meant: for a person, each a sentence that names its setting. They tell of the disks as they are now.
func (c *Config) Warnings() []string {
	out := slices.Clone(c.idle)
	for _, name := range c.Unsafe() {
		out = append(out, name+" is on: deliveries that were acknowledged may be lost")
	}
	out = append(out, c.unbounded()...)
	out = append(out, c.verificationWarnings()...)
	s := c.Ingest.Spool
	on, err := diskOf(existing(s.Dir))
	if s.Dir == "" || err != nil {
		return out
	}
	if need := int64(s.MaxBytes) - held(s.Dir); on.free < need {
		out = append(out, fmt.Sprintf("ingest.spool.dir: %d MiB are free for %s, and %d MiB may be needed: make room, or lower ingest.spool.max_bytes (%s); what finds no room is answered 503",
			on.free>>20, s.Dir, need>>20, s.MaxBytes))
	}
	if on.layer {
		out = append(out, fmt.Sprintf("ingest.spool.dir: %s lies in the container's own layer, which goes with the container: mount a volume there", s.Dir))
	}
	return out
}

// held is how many bytes of a spool are on the disk already; 0 where this account may not look.
func held(dir string) (sum int64) {
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
