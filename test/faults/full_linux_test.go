package faults_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
)

// A NATS server whose disk was full accepts nothing until it is restarted, even when there is space
// again. Deliveries are stored and acknowledged meanwhile, and the log names the remedy. After the
// restart all events are applied.
func TestGateway_natsDiskFull_storesAndAppliesAfterRestart(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := syscall.Mount("none", disk, "tmpfs", 0, "size=24m"); err != nil {
		t.Skipf("no small disk can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount the small disk: %v", err)
		}
	})
	s := buildWith(t, testkit.JetStreamIn(t, disk))
	s.start(t, patientTuning)
	l := s.send(t)
	l.await(t, 20, "stored", stored)
	rest := filepath.Join(disk, "rest")
	if err := fill(rest); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	l.await(t, 60, "stored", stored)
	s.waitForLog(t, "free space and restart that server")
	testkit.Must(t, os.Remove(rest))
	s.nats.Restart(t)
	l.await(t, 20, "stored", stored)
	l.finish(t, s)
}

// fill writes a file until that fails.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for piece := make([]byte, 4096); err == nil; {
		_, err = f.Write(piece)
	}
	return err
}
