package spool_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/spool"
)

var errInodes = errors.New("no space left on device")

// TestNoNextFile: where the next file cannot be made, the active one takes what it has room for, and only then is anything refused; what was refused for its size keeps nothing else out.
func TestNoNextFile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := newVolatile(1, -1)
		r := start(t, disk, small)
		r.keep(t, "first") // the file made ahead is the active one now, and another is made ahead
		synctest.Wait()
		disk.set("create", errInodes)
		kept := map[string]bool{"first": true}
		var refused error
		for n := 0; refused == nil && n < 100; n++ { // of 1,000 bytes and a head each: two files of 8 KiB take 14
			rec := fmt.Sprintf("%d:%s", n, strings.Repeat("x", 1000))
			if n == 10 {
				if err := r.Append(t.Context(), make([]byte, 7<<10)); !errors.Is(err, spool.ErrBroken) || !errors.Is(err, errInodes) {
					t.Errorf("more than the file has room for: %v", err)
				}
			}
			if refused = r.Append(t.Context(), []byte(rec)); refused == nil {
				kept[rec] = true
			}
			synctest.Wait()
		}
		if !errors.Is(refused, spool.ErrBroken) || !errors.Is(refused, errInodes) || len(kept) < 14 || len(kept) > 16 {
			t.Errorf("%d kept, then: %v", len(kept), refused)
		}
		if err := r.Ready(); err != nil {
			t.Errorf("a small one has room still: %v", err)
		}
		r.keep(t, "small")
		kept["small"] = true
		disk.set("create", nil)
		<-time.After(2 * time.Second)
		r.keep(t, strings.Repeat("y", 2000))
		kept[strings.Repeat("y", 2000)] = true
		r.stop()
		if got := start(t, disk.cut(-1), small).all(t); len(got) != len(kept) {
			t.Errorf("%d records came out, want %d", len(got), len(kept))
		} else {
			for rec := range kept {
				if got[rec] != 1 {
					t.Errorf("%.10s came out %d times", rec, got[rec])
				}
			}
		}
	})
}

// TestNoNextFileAtOnce: of what waits when it turns out that no next file can be made, as much is kept as the active file has room for, and each is answered.
func TestNoNextFileAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := newSlow(10 * time.Millisecond)
		disk.set("create", errInodes)
		r := start(t, disk, small)
		synctest.Wait()
		if err := r.Append(t.Context(), []byte("none")); !errors.Is(err, spool.ErrBroken) {
			t.Errorf("without any file: %v", err)
		}
		disk.set("create", nil)
		<-time.After(2 * time.Second)
		disk.set("create", errInodes)
		var wg sync.WaitGroup
		wg.Go(func() { r.keep(t, "first") })
		<-time.After(5 * time.Millisecond) // it is written, and takes the file that was made ahead
		errs := make([]error, 20)
		for i := range errs {
			wg.Go(func() {
				errs[i] = r.Append(context.WithoutCancel(t.Context()), []byte(fmt.Sprintf("%d:%s", i, strings.Repeat("x", 1000))))
			})
		}
		wg.Wait()
		kept := 0
		for _, err := range errs {
			switch {
			case err == nil:
				kept++
			case !errors.Is(err, spool.ErrBroken) || !errors.Is(err, errInodes):
				t.Error(err)
			}
		}
		if kept != 7 {
			t.Errorf("%d of 20 are kept in 8 KiB, want 7", kept)
		}
		if n := r.Stats().Records; n != 8 {
			t.Errorf("%d are counted, want 8", n)
		}
		r.keep(t, "small")
		if got := r.all(t); len(got) != 9 {
			t.Errorf("%d came out, want 9", len(got))
		}
		r.stop()
	})
}

// TestWhoGaveUpTakesNoRoom: records that were given up before their write take no room of the active file, so that as many come after them as without them.
func TestWhoGaveUpTakesNoRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := newSlow(100 * time.Millisecond)
		r := start(t, disk, small)
		<-time.After(time.Second)
		rec := strings.Repeat("x", 1000)
		var wg sync.WaitGroup
		wg.Go(func() { r.keep(t, "first") })
		<-time.After(10 * time.Millisecond) // it is written
		for range 10 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				if err := r.Append(ctx, []byte(rec)); !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		<-time.After(time.Second) // another file is made ahead
		disk.set("create", errInodes)
		kept := 0
		for ; kept < 100 && r.Append(context.WithoutCancel(t.Context()), []byte(rec)) == nil; kept++ {
			synctest.Wait()
		}
		if kept != 14 {
			t.Errorf("%d records are kept in two files of 8 KiB, want 14", kept)
		}
		r.stop()
	})
}

// keep appends what must be kept.
func (r *running) keep(t *testing.T, rec string) {
	t.Helper()
	if err := r.Append(context.WithoutCancel(t.Context()), []byte(rec)); err != nil {
		t.Errorf("%.10s: %v", rec, err)
	}
}

// TestADiskThatHangsAtAFileRefusesAtOnce: so does who comes while the file that is made ahead does not become durable.
func TestADiskThatHangsAtAFileRefusesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := newHanging()
		disk.hang.Store(true)
		r := start(t, disk, small)
		<-time.After(500 * time.Millisecond)
		if err := r.Ready(); err != nil {
			t.Errorf("a file may take its time: %v", err)
		}
		<-time.After(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		if err := r.Append(ctx, []byte("first")); !errors.Is(err, spool.ErrBroken) || time.Since(began) != 0 {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		close(disk.until)
		synctest.Wait()
		r.keep(t, "second")
		<-time.After(time.Minute)
		if err := r.Ready(); err != nil {
			t.Errorf("with a file ahead: %v", err)
		}
		r.stop()
	})
}

// TestWhoGivesUpLeavesNothingBehind: a record whose sender waits no longer holds no memory while the disk hangs, and costs the disk nothing when it goes on. One whose write is under way is kept or not.
func TestWhoGivesUpLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := newHanging()
		r := start(t, disk, small)
		synctest.Wait()
		disk.hang.Store(true)
		var wg sync.WaitGroup
		gaveUp := func(record string, after time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), after)
			defer cancel()
			if err := r.Append(ctx, []byte(record)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", record, err)
			}
		}
		wg.Go(func() { gaveUp("under way", 100*time.Millisecond) })
		synctest.Wait()
		for n := range 5 {
			wg.Go(func() { gaveUp(fmt.Sprint("waits ", n), time.Duration(500-n)*time.Millisecond) })
		}
		patient := make(chan error, 1)
		go func() { patient <- r.Append(t.Context(), []byte("patient")) }()
		synctest.Wait()
		if kept := r.Stats(); kept.Records != 7 {
			t.Errorf("while they wait: %+v", kept)
		}
		wg.Wait()
		if kept := r.Stats(); kept.Records != 2 {
			t.Errorf("after they gave up: %+v", kept)
		}
		close(disk.until)
		if err := <-patient; err != nil {
			t.Error(err)
		}
		if got, want := r.all(t), map[string]int{"under way": 1, "patient": 1}; !maps.Equal(got, want) {
			t.Errorf("kept %v, want %v", got, want)
		}
		if kept := r.Stats(); kept.Records != 0 || kept.Bytes != 0 {
			t.Errorf("at the end: %+v", kept)
		}
		r.stop()
	})
}
