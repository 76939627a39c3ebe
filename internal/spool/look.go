package spool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// State is what became of a file of a spool.
type State string

// The states of files.
const (
	// Kept is a segment that is drained one day, or was made ahead and is empty.
	Kept State = "kept"
	// SetApart is a segment that was drained and could not be read whole.
	SetApart State = "set apart"
	// Refused is a record that its reader could make nothing of.
	Refused State = "refused"
)

// Found is a file of a spool as Look found it.
type Found struct {
	Name  string
	State State
	// Records are whole; Bytes are those of their frames.
	Records int64
	Bytes   int64
	// Lost is how many places were found at which an acknowledged record should stand and does not.
	Lost int
	// Torn: behind the last whole record there is something that is none. Nobody was told that it is kept, unless the disk has lost what it had synced; a live process may write it just now.
	Torn bool
	// Unreadable is why nothing of the file can be read; nil: it can.
	Unreadable error
}

// Look reads the files of a folder and leaves all as it is: it takes no lock, and a spool in use may be written to and drained meanwhile. Each whole record is given to do, the oldest first, with its
// file as it is read so far. A file that was drained before it could be read is not told: whoever drained it has taken all of it. Errors: do's, and those of the folder, for which errors.Is(fs.ErrNotExist) may hold.
func Look(path string, do func(*Found, Record) error) ([]*Found, error) {
	entries, err := os.ReadDir(path) // in the order of their names, which is that of their numbers
	if err != nil {
		return nil, fmt.Errorf("look into the spool: %w", err)
	}
	var all []*Found
	for _, entry := range entries {
		found, err := lookAt(path, entry.Name(), do)
		if err != nil {
			return nil, fmt.Errorf("look into the spool: %w", err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// lookAt reads a file, under the name that it may have got meanwhile. What is no file of a spool's, or gone, is none.
func lookAt(path, name string, do func(*Found, Record) error) ([]*Found, error) {
	f := &Found{Name: name, State: stateOf(name)}
	if f.State == "" {
		return nil, nil
	}
	file, err := os.Open(filepath.Join(path, name))
	if errors.Is(err, fs.ErrNotExist) && f.State == Kept {
		return lookAt(path, name+damaged, do)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if f.State == Refused {
		return []*Found{f}, lookAtRefused(f, file, do)
	}
	return []*Found{f}, lookAtSegment(f, file, do)
}

// stateOf is the state of a file by its name; "" of what is none of a spool's, or does not count yet.
func stateOf(name string) State {
	switch {
	case strings.HasSuffix(name, suffix):
		return Kept
	case strings.HasSuffix(name, suffix+damaged):
		return SetApart
	case strings.HasSuffix(name, refused):
		return Refused
	}
	return ""
}

func lookAtSegment(f *Found, opened *os.File, do func(*Found, Record) error) error {
	size, err := file{opened}.Size()
	if err != nil {
		return err
	}
	r, err := newReader(file{opened})
	if err != nil {
		f.Unreadable = err
		return nil
	}
	for {
		rec, err := r.next(size)
		f.Lost, f.Torn = r.lost, r.torn
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			f.Unreadable = err
			return nil
		}
		f.Records++
		f.Bytes += frameSize(len(rec.Bytes))
		if err := do(f, rec); err != nil {
			return err
		}
	}
}

// lookAtRefused reads a record that has a file of its own. Its name tells when it was kept.
func lookAtRefused(f *Found, opened *os.File, do func(*Found, Record) error) error {
	rec := Record{At: refusedAt(f.Name)}
	var err error
	if rec.Bytes, err = io.ReadAll(io.LimitReader(opened, MaxRecord)); err != nil {
		f.Unreadable = err
		return nil
	}
	f.Records, f.Bytes = 1, int64(len(rec.Bytes))
	return do(f, rec)
}

// refusedAt is when a record was kept that was set apart under a name.
func refusedAt(name string) time.Time {
	micros, _, _ := strings.Cut(name, "-")
	n, err := strconv.ParseInt(micros, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}

// Whole is the name under which the next process that has the folder reads a segment again that was set apart.
func Whole(name string) string { return strings.TrimSuffix(name, damaged) }
