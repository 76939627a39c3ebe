package spool_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/spool"
)

// errPowerLost is the error of every call after the power failure.
var errPowerLost = errors.New("the power is lost")

// sector is the size that a disk writes completely or not at all.
const sector = 512

// unreliableDisk is a disk that loses unsynced data when its power fails. Each file keeps what it
// had when its last completed sync began, and arbitrary sectors of later writes. Names are treated
// likewise.
type unreliableDisk struct {
	mu   sync.Mutex
	rand *rand.Rand
	// callsLeft is the number of calls until the power fails; below zero it never does.
	callsLeft int
	files     map[string]*unreliableFile
	// durable are the names at the last sync of the folder, and changes the later changes.
	durable map[string]*unreliableFile
	changes []func(map[string]*unreliableFile)
	// fail makes a kind of call fail, until it is cleared.
	fail map[string]error
}

func newUnreliableDisk(seed uint64, calls int) *unreliableDisk {
	return &unreliableDisk{rand: rand.New(rand.NewPCG(seed, 1)), callsLeft: calls, files: map[string]*unreliableFile{},
		durable: map[string]*unreliableFile{}, fail: map[string]error{}}
}

type pendingWrite struct {
	at   int64
	data []byte
}

type unreliableFile struct {
	disk    *unreliableDisk
	data    []byte
	durable []byte
	writes  []pendingWrite
}

// call counts a call. The caller has the lock.
func (d *unreliableDisk) call(kind string) error {
	if d.callsLeft == 0 {
		return errPowerLost
	}
	if d.callsLeft > 0 {
		d.callsLeft--
	}
	return d.fail[kind]
}

// powerCycle returns the disk as it is after the power failure.
func (d *unreliableDisk) powerCycle(calls int) *unreliableDisk {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.callsLeft = 0
	for _, change := range d.changes {
		if d.rand.IntN(2) == 0 {
			break // changes of names reach the disk in order, as in a journal
		}
		change(d.durable)
	}
	next := newUnreliableDisk(d.rand.Uint64(), calls)
	for name, f := range d.durable {
		data := slices.Clone(f.durable)
		for _, w := range f.writes {
			data = d.writeSomeSectors(data, w)
		}
		next.files[name] = &unreliableFile{disk: next, data: data, durable: slices.Clone(data)}
	}
	next.durable = maps.Clone(next.files)
	return next
}

// writeSomeSectors applies some sectors of a write.
func (d *unreliableDisk) writeSomeSectors(data []byte, w pendingWrite) []byte {
	for from := 0; from < len(w.data); {
		to := min(len(w.data), from+sector-int((w.at+int64(from))%sector))
		if d.rand.IntN(2) == 0 {
			data = grow(data, w.at+int64(to))
			copy(data[w.at+int64(from):], w.data[from:to])
		}
		from = to
	}
	return data
}

func grow(data []byte, size int64) []byte {
	if missing := size - int64(len(data)); missing > 0 {
		return append(data, make([]byte, missing)...)
	}
	return data
}

func (d *unreliableDisk) Names() ([]string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.files)), d.call("names")
}

func (d *unreliableDisk) Create(name string) (spool.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("create"); err != nil {
		return nil, err
	}
	if d.files[name] != nil {
		return nil, fs.ErrExist
	}
	f := &unreliableFile{disk: d}
	d.changeNames(func(files map[string]*unreliableFile) { files[name] = f })
	return f, nil
}

// changeNames applies a change to the names.
func (d *unreliableDisk) changeNames(how func(map[string]*unreliableFile)) {
	how(d.files)
	d.changes = append(d.changes, how)
}

func (d *unreliableDisk) Open(name string) (spool.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files[name] == nil {
		return nil, fs.ErrNotExist
	}
	return d.files[name], d.call("open")
}

func (d *unreliableDisk) Rename(from, to string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("rename"); err != nil {
		return err
	}
	d.changeNames(func(files map[string]*unreliableFile) { files[to] = files[from]; delete(files, from) })
	return nil
}

func (d *unreliableDisk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("remove"); err != nil {
		return err
	}
	d.changeNames(func(files map[string]*unreliableFile) { delete(files, name) })
	return nil
}

// Sync is atomic.
func (d *unreliableDisk) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.call("sync folder"); err != nil {
		return err
	}
	d.durable, d.changes = maps.Clone(d.files), nil
	return nil
}

func (d *unreliableDisk) Close() error { return nil }

func (f *unreliableFile) ReadAt(p []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.call("read"); err != nil {
		return 0, err
	}
	if at >= int64(len(f.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.data[at:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *unreliableFile) WriteAt(p []byte, at int64) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.call("write"); err != nil {
		half := len(p) / 2
		f.put(pendingWrite{at, slices.Clone(p[:half])})
		return half, err
	}
	f.put(pendingWrite{at, slices.Clone(p)})
	return len(p), nil
}

func (f *unreliableFile) put(w pendingWrite) {
	f.data = grow(f.data, w.at+int64(len(w.data)))
	copy(f.data[w.at:], w.data)
	f.writes = append(f.writes, w)
}

// Sync makes durable what was written before it started, not what is written meanwhile. A failed
// sync loses some of the data, and the next one has nothing to write.
func (f *unreliableFile) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	err := f.disk.call("sync")
	if errors.Is(err, errPowerLost) {
		return err
	}
	if err != nil {
		for _, w := range f.writes {
			f.durable = f.disk.writeSomeSectors(f.durable, w)
		}
	} else {
		for _, w := range f.writes {
			f.durable = grow(f.durable, w.at+int64(len(w.data)))
			copy(f.durable[w.at:], w.data)
		}
	}
	f.writes = nil
	return err
}

func (f *unreliableFile) Size() (int64, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return int64(len(f.data)), nil
}

func (f *unreliableFile) Close() error { return nil }

// delayingDisk is a disk whose syncs wait before they start.
type delayingDisk struct {
	*unreliableDisk
	wait func()
}

func (d *delayingDisk) Create(name string) (spool.File, error) {
	f, err := d.unreliableDisk.Create(name)
	return delayingFile{f, d.wait}, err
}

type delayingFile struct {
	spool.File
	wait func()
}

func (f delayingFile) Sync() error {
	f.wait()
	return f.File.Sync()
}

// hangingDisk is a disk whose syncs do not end while it hangs.
type hangingDisk struct {
	delayingDisk
	hang  atomic.Bool
	until chan struct{}
}

func newHangingDisk() *hangingDisk {
	d := &hangingDisk{until: make(chan struct{})}
	d.delayingDisk = delayingDisk{newUnreliableDisk(1, -1), func() {
		if d.hang.Load() {
			<-d.until
		}
	}}
	return d
}

// newSlowDisk returns a disk whose syncs take some time.
func newSlowDisk(takes time.Duration) *delayingDisk {
	return &delayingDisk{newUnreliableDisk(1, -1), func() { <-time.After(takes) }}
}

// onlySegment returns the only segment that was written to.
func (d *unreliableDisk) onlySegment(t *testing.T) *unreliableFile {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		if len(bytes.TrimRight(f.data, "\x00")) > 48 {
			return f
		}
	}
	t.Fatal("nothing was written")
	return nil
}

// inOneFile returns true if one file has both.
func (d *unreliableDisk) inOneFile(a, b string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		if bytes.Contains(f.data, []byte(a)) && bytes.Contains(f.data, []byte(b)) {
			return true
		}
	}
	return false
}

// flipBit flips a bit of the only segment, anywhere after its header and before the zeros.
func (d *unreliableDisk) flipBit() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range d.files {
		written := len(bytes.TrimRight(f.data, "\x00"))
		f.data[48+d.rand.IntN(written-48)] ^= 1 << d.rand.IntN(8)
	}
}
