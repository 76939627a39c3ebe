package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/spool"
)

// spoolsSQL finds registered spools that were not empty recently, and how long ago they were empty
// (null: never reported). The last column is true if the same location has another spool name that
// was empty more recently.
const spoolsSQL = `
SELECT s.spool, s.location, CASE WHEN isfinite(s.drained_at) THEN extract(epoch FROM clock_now() - s.drained_at)::bigint
	END,
  EXISTS (SELECT FROM spools o WHERE o.location = s.location AND o.spool <> s.spool AND o.drained_at > s.drained_at)
FROM spools s WHERE s.drained_at < clock_now() - make_interval(secs => $1) ORDER BY s.location, s.spool`

const anySpoolSQL = `SELECT EXISTS (SELECT FROM spools)`

// checkLocalSpools checks the registered spool folders on this machine, except the configured one.
func (e *examination) checkLocalSpools(ctx context.Context) error {
	local, err := redaction.LocalSpools(ctx, e.Pool)
	if err != nil {
		return err
	}
	configured := ""
	if e.Config != nil && e.Config.Ingest.Spool.Dir != "" {
		// checkSpool reports an error of this folder
		configured, _ = spool.NameOfFolder(e.Config.Ingest.Spool.Dir)
	}
	for _, s := range local {
		switch {
		case s.Err != nil:
			e.add(Warn, "spool.files", s.Err.Error(), "run this command as the account of that gateway, to see "+
				"whether files are quarantined")
		case s.Name != configured:
			e.checkSpoolFiles(s.Dir)
		}
	}
	return nil
}

// checkSpools reports spools that were not empty for so long that redactions wait for them.
func (e *examination) checkSpools(ctx context.Context) error {
	reported := 0
	var name, location string
	var ago *int64
	var renamed bool
	if err := postgres.ForEach(ctx, e.Pool, spoolsSQL, []any{redaction.SpoolSilentAfter.Seconds()},
		[]any{&name, &location, &ago, &renamed}, func() error {
			reported++
			lastEmpty := "was never reported empty"
			if ago != nil {
				lastEmpty = "was last empty " + (time.Duration(*ago) * time.Second).String() + " ago"
			}
			found, do := fmt.Sprintf("redactions wait for the spool %s (%s), which %s", location, name, lastEmpty),
				"start that gateway if it is not running, and check its log if it is"
			if renamed {
				found += "; the folder now has another spool name"
				do = "if its disk is not mounted there, stop that gateway, mount it and start it again"
			}
			e.add(Warn, "postgres.spools", found, fmt.Sprintf("%s; if its disk is lost, postern spool remove %s", do,
				name))
			return nil
		}); err != nil {
		return err
	}
	if reported > 0 {
		return nil
	}
	var registered bool
	if err := e.Pool.QueryRow(ctx, anySpoolSQL).Scan(&registered); err != nil {
		return err
	}
	if registered {
		e.add(OK, "postgres.spools", fmt.Sprintf("each spool was empty within the last %s",
			redaction.SpoolSilentAfter), "")
	} else {
		e.add(OK, "postgres.spools", "no spool is registered", "")
	}
	return nil
}
