package ingest_test

import (
	"fmt"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/testkit"
)

// badDisk is a real folder that has no room, or does not answer, while it is told so.
type badDisk struct {
	spool.Disk
	mu    sync.Mutex
	full  bool
	hangs chan struct{}
}

type badFile struct {
	spool.File
	on *badDisk
}

// trouble is what a write meets now.
func (d *badDisk) trouble() error {
	d.mu.Lock()
	full, hangs := d.full, d.hangs
	d.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
	if full {
		return syscall.ENOSPC
	}
	return nil
}

// hang makes writes wait until it is called again.
func (d *badDisk) hang(on bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if on {
		d.hangs = make(chan struct{})
	} else {
		close(d.hangs)
		d.hangs = nil
	}
}

func (d *badDisk) fill(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = full
}

func (d *badDisk) Create(name string) (spool.File, error) {
	if err := d.trouble(); err != nil {
		return nil, err
	}
	f, err := d.Disk.Create(name)
	return badFile{f, d}, err
}

func (d *badDisk) Open(name string) (spool.File, error) {
	f, err := d.Disk.Open(name)
	return badFile{f, d}, err
}

// WriteAt writes half of what finds no room, as disks do.
func (f badFile) WriteAt(b []byte, at int64) (int, error) {
	if err := f.on.trouble(); err != nil {
		n, _ := f.File.WriteAt(b[:len(b)/2], at)
		return n, err
	}
	return f.File.WriteAt(b, at)
}

func (f badFile) Sync() error {
	if err := f.on.trouble(); err != nil {
		return err
	}
	return f.File.Sync()
}

// With PostgreSQL and the spool's disk away, deliveries are answered 503 with Retry-After and soon; what was acknowledged before and after is in the log, once and whole, when
// both are back, and nothing else has come of it.
func TestStoreAndDiskAway(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(d *badDisk, on bool){"full": (*badDisk).fill, "hanging": (*badDisk).hang} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			disk := &badDisk{}
			var s *spool.Spool
			b := setupSpool(t, func(o *ingest.Options) {
				folder, err := spool.Folder(t.TempDir())
				if err != nil {
					t.Fatal(err)
				}
				disk.Disk = folder
				if s, err = spool.Open(disk, spool.Options{MaxBytes: 1 << 30, SegmentBytes: 1 << 20, StallAfter: 500 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}); err != nil {
					t.Fatal(err)
				}
				o.Spool = s
				o.Settings.Deadline = 3 * time.Second
			})
			b.spool = s
			acknowledged, refused := map[string]bool{}, 0
			send := func(key string) answer {
				a := b.post(t, "many", b.sign(t, "many", line(key)))
				if a.status == 200 {
					acknowledged[key] = true
				}
				return a
			}
			send("before")
			b.store.Cut()
			for n := range 5 {
				send(fmt.Sprint("kept ", n)).kept(t, fmt.Sprint("kept ", n))
			}
			trouble(disk, true)
			for n := range 20 {
				a := send(fmt.Sprint("refused ", n))
				a.refused(t, 503, "unavailable")
				if refused++; n > 2 && a.took > 2*time.Second { // the first of them found out
					t.Errorf("a refusal took %s", a.took)
				}
			}
			if b.server.Ready(t.Context()) == nil {
				t.Error("it says that it is ready")
			}
			trouble(disk, false)
			testkit.Eventually(t, time.Minute, func() error {
				if a := send("again"); a.status != 200 {
					return fmt.Errorf("%d %s", a.status, a.body)
				}
				return nil
			})
			b.store.Restore()
			testkit.Eventually(t, time.Minute, func() error {
				if left := b.spool.Stats(); left.Records > 0 || left.Damaged > 0 {
					return fmt.Errorf("kept %+v", left)
				}
				return nil
			})
			testkit.Eventually(t, time.Minute, func() error {
				if a := send("after"); a.status != 200 {
					return fmt.Errorf("%d %s", a.status, a.body)
				}
				return nil
			})
			for key := range acknowledged {
				if n := b.count(t, `SELECT count(*) FROM events WHERE event_id = $1 AND body = $2`, key, []byte(key)); n != 1 {
					t.Errorf("%s is in the log %d times", key, n)
				}
			}
			if n := b.count(t, `SELECT count(*) FROM events WHERE body IS NULL OR event_id <> convert_from(body, 'UTF8')`); n != 0 {
				t.Errorf("%d events are not whole", n)
			}
		})
	}
}
