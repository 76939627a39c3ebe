package spool_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/spool"
)

// TestADiskThatHangsAtAFileRefusesAtOnce: so does who comes while the file that is made ahead does not become durable.
func TestADiskThatHangsAtAFileRefusesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := &hanging{volatile: newVolatile(1, -1), until: make(chan struct{})}
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
		if err := r.Append(t.Context(), []byte("second")); err != nil {
			t.Error(err)
		}
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
		disk := &hanging{volatile: newVolatile(1, -1), until: make(chan struct{})}
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
