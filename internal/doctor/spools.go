package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/spool"
)

// spoolsSQL finds registered spools that were not empty recently, and how long ago they were empty
// (null: never reported). The last column is true if the same place has another spool name that was
// empty more recently.
const spoolsSQL = `
SELECT s.spool, s.place, CASE WHEN isfinite(s.empty_at) THEN extract(epoch FROM clock_now() - s.empty_at)::bigint END,
  EXISTS (SELECT FROM spools o WHERE o.place = s.place AND o.spool <> s.spool AND o.empty_at > s.empty_at)
FROM spools s WHERE s.empty_at < clock_now() - make_interval(secs => $1) ORDER BY s.place, s.spool`

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

// checkSpools finds spools for which redactions wait.
func (e *examination) checkSpools(ctx context.Context) error {
	rows, err := e.Pool.Query(ctx, spoolsSQL, redaction.SpoolSilentAfter.Seconds())
	if err != nil {
		return err
	}
	late := 0
	var name, place string
	var ago *int64
	var renamed bool
	if _, err := pgx.ForEachRow(rows, []any{&name, &place, &ago, &renamed}, func() error {
		late++
		since := "never, as far as known"
		if ago != nil {
			since = (time.Duration(*ago) * time.Second).String() + " ago"
		}
		found, do := fmt.Sprintf("redactions wait for the spool %s (%s), which was last empty: %s", place, name, since),
			"start that gateway if it is not running, and check its log if it is"
		if renamed {
			found += "; the folder now has another spool name"
			do = "if its disk is not mounted there, stop that gateway, mount it and start it again"
		}
		e.add(Warn, "postgres.spools", found, fmt.Sprintf("%s; if its disk is lost, postern spool forget %s", do, name))
		return nil
	}); err != nil {
		return err
	}
	if late == 0 {
		e.add(OK, "postgres.spools", fmt.Sprintf("no spool was non-empty for longer than %s",
			redaction.SpoolSilentAfter), "")
	}
	return nil
}
