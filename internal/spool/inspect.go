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

// State is the state of a file of a spool.
type State string

// The states of files.
const (
	// StatePending is a segment that will be drained, or an empty one that was created in advance.
	StatePending State = "pending"
	// StateDamaged is a segment that was drained but could not be read completely.
	StateDamaged State = "damaged"
	// StateQuarantined is a record that could not be appended.
	StateQuarantined State = "quarantined"
)

// FileReport is what Inspect found in a file of a spool.
type FileReport struct {
	Name  string
	State State
	// Records are the complete records; Bytes is the size of their frames.
	Records int64
	Bytes   int64
	// LostPlaces is the number of places with an acknowledged record that cannot be read.
	LostPlaces int
	// TornTail is true if there is other data after the last complete record. It was not
	// acknowledged, unless the disk has lost synced data. A running process may be writing it.
	TornTail bool
	// Unreadable is why nothing of the file can be read; nil if it can.
	Unreadable error
}

// Inspect reads the files of a folder and changes nothing. It takes no lock, so a gateway may write
// to the spool and drain it meanwhile. It calls handle for each complete record, the oldest first,
// with the report of its file so far. It omits files that were drained and deleted before it could
// read them. Errors: those of handle and of the folder; errors.Is(err, fs.ErrNotExist) may be true
// for the latter.
func Inspect(path string, handle func(*FileReport, Record) error) ([]*FileReport, error) {
	entries, err := os.ReadDir(path) // sorted by name, which is the order of their numbers
	if err != nil {
		return nil, fmt.Errorf("read the spool: %w", err)
	}
	var all []*FileReport
	for _, entry := range entries {
		found, err := inspectFile(path, entry.Name(), handle)
		if err != nil {
			return nil, fmt.Errorf("read the spool: %w", err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// inspectFile reads a file, also if it was renamed meanwhile. It returns no report for a deleted
// file, or for a file that is not of a spool.
func inspectFile(path, name string, handle func(*FileReport, Record) error) ([]*FileReport, error) {
	f := &FileReport{Name: name, State: stateOf(name)}
	if f.State == "" {
		return nil, nil
	}
	file, err := os.Open(filepath.Join(path, name))
	if errors.Is(err, fs.ErrNotExist) && f.State == StatePending {
		return inspectFile(path, name+damagedSuffix, handle)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if f.State == StateQuarantined {
		return []*FileReport{f}, inspectQuarantined(f, file, handle)
	}
	return []*FileReport{f}, inspectSegment(f, file, handle)
}

// stateOf returns the state of a file by its name; "" for other files and temporary ones.
func stateOf(name string) State {
	switch {
	case strings.HasSuffix(name, segmentSuffix):
		return StatePending
	case strings.HasSuffix(name, segmentSuffix+damagedSuffix):
		return StateDamaged
	case strings.HasSuffix(name, quarantineSuffix):
		return StateQuarantined
	}
	return ""
}

func inspectSegment(f *FileReport, opened *os.File, handle func(*FileReport, Record) error) error {
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
		f.LostPlaces, f.TornTail = r.lostPlaces, r.tornTail
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			f.Unreadable = err
			return nil
		}
		f.Records++
		f.Bytes += frameSize(len(rec.Bytes))
		if err := handle(f, rec); err != nil {
			return err
		}
	}
}

// inspectQuarantined reads a quarantined record. The file's name has the time of its append.
func inspectQuarantined(f *FileReport, opened *os.File, handle func(*FileReport, Record) error) error {
	rec := Record{At: quarantinedAt(f.Name)}
	var err error
	if rec.Bytes, err = io.ReadAll(io.LimitReader(opened, MaxRecord)); err != nil {
		f.Unreadable = err
		return nil
	}
	f.Records, f.Bytes = 1, int64(len(rec.Bytes))
	return handle(f, rec)
}

// quarantinedAt returns the time of the append in the name of a quarantined record's file.
func quarantinedAt(name string) time.Time {
	micros, _, _ := strings.Cut(name, "-")
	n, err := strconv.ParseInt(micros, 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}

// RestoredName returns the name that a damaged segment must get so that the next process reads it
// again.
func RestoredName(name string) string { return strings.TrimSuffix(name, damagedSuffix) }
