package suite

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// slowDisk makes each flush of the write-ahead log take 2 ms longer, as on a slow disk.
var slowDisk = map[string]string{"commit_delay": "2000", "commit_siblings": "0"}

// slowDisk is Compare with a delay of 2 ms for every commit.
func (s *Suite) slowDisk(ctx context.Context, row string, rounds int, shape Shape, targets ...string) (_ []Sample,
	err error) {
	defer func() {
		defaults := map[string]string{}
		for name := range slowDisk {
			defaults[name] = ""
		}
		err = errors.Join(err, s.m.Set(context.WithoutCancel(ctx), defaults))
	}()
	if err := s.m.Set(ctx, slowDisk); err != nil {
		return nil, err
	}
	if err := s.inForce(ctx, slowDisk); err != nil {
		return nil, err
	}
	return s.Compare(ctx, row, rounds, shape, targets...)
}

// inForce waits until new sessions have some settings. PostgreSQL applies them a moment after the
// reload.
func (s *Suite) inForce(ctx context.Context, settings map[string]string) error {
	const within = 10 * time.Second
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		wrong, err := s.differs(ctx, settings)
		if err != nil || wrong == "" {
			return err
		}
		if time.Since(began) > within {
			return fmt.Errorf("the setting %s is not in force after %s: if -postgres sets it, leave that out", wrong,
				within)
		}
	}
}

// differs returns the name of a setting that a new session does not have.
func (s *Suite) differs(ctx context.Context, settings map[string]string) (string, error) {
	conn, err := s.m.Connect(ctx, "postgres")
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for name, want := range settings {
		var have string
		if err := conn.QueryRow(ctx, "SELECT setting FROM pg_settings WHERE name = $1", name).Scan(&have); err != nil {
			return "", err
		}
		if have != want {
			return name, nil
		}
	}
	return "", nil
}
