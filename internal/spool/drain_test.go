package spool_test

import (
	"maps"
	"testing"
	"testing/synctest"
)

// A drain that has read a file to its end does not remove it while a delivery is being written to it.
func TestDrain_writeUnderWay_keepsTheFile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := &hanging{volatile: newVolatile(1, -1), until: make(chan struct{})}
		r := start(t, disk, small)
		if err := r.Append(t.Context(), []byte("first")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		disk.hang.Store(true)
		acknowledged, drained := make(chan error, 1), make(chan map[string]int, 1)
		go func() { acknowledged <- r.Append(t.Context(), []byte("second")) }()
		synctest.Wait()
		go func() { drained <- r.all(t) }()
		synctest.Wait()
		close(disk.until)
		if err := <-acknowledged; err != nil {
			t.Error(err)
		}
		got := <-drained
		maps.Copy(got, r.all(t))
		if want := map[string]int{"first": 1, "second": 1}; !maps.Equal(got, want) {
			t.Errorf("drained %v, want %v", got, want)
		}
		r.stop()
	})
}

// A drain that has read a file to its end does not remove it where a delivery was added since.
func TestDrain_recordAddedMeanwhile_keepsTheFile(t *testing.T) {
	t.Parallel()
	r := start(t, newVolatile(1, -1), small)
	defer r.stop()
	if err := r.Append(t.Context(), []byte("first")); err != nil {
		t.Fatal(err)
	}
	read := r.End()
	if err := r.Append(t.Context(), []byte("second")); err != nil {
		t.Fatal(err)
	}
	if r.Retire(read) {
		t.Error("the file with the second delivery may be removed")
	}
	if got, want := r.all(t), map[string]int{"first": 1, "second": 1}; !maps.Equal(got, want) {
		t.Errorf("drained %v, want %v", got, want)
	}
}
