package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/spool"
)

// spoolsSQL finds spools that are told of, since when they were not empty (null: never told), and whether a place has one under another name that is empty more lately.
const spoolsSQL = `
SELECT s.spool, s.place, CASE WHEN isfinite(s.empty_at) THEN extract(epoch FROM clock_now() - s.empty_at)::bigint END,
  EXISTS (SELECT FROM spools o WHERE o.place = s.place AND o.spool <> s.spool AND o.empty_at > s.empty_at)
FROM spools s WHERE s.empty_at < clock_now() - make_interval(secs => $1) ORDER BY s.place, s.spool`

// localSpools looks into the folders on this machine that gateways have told the database of, besides the configured one.
func (e *examination) localSpools(ctx context.Context) error {
	local, err := redaction.LocalSpools(ctx, e.Pool)
	if err != nil {
		return err
	}
	configured := ""
	if e.Config != nil && e.Config.Ingest.Spool.Dir != "" {
		configured, _ = spool.NameIn(e.Config.Ingest.Spool.Dir) // the check of the configuration tells what is wrong with it
	}
	for _, s := range local {
		switch {
		case s.Err != nil:
			e.add(Warn, "spool.files", s.Err.Error(), "run this command as the account of that gateway, to see whether files were set apart")
		case s.Name != configured:
			e.spoolFiles(s.Dir)
		}
	}
	return nil
}

// spools looks for those that redactions wait for.
func (e *examination) spools(ctx context.Context) error {
	rows, err := e.Pool.Query(ctx, spoolsSQL, redaction.SpoolLate.Seconds())
	if err != nil {
		return err
	}
	late := 0
	var name, place string
	var ago *int64
	var renamed bool
	if _, err := pgx.ForEachRow(rows, []any{&name, &place, &ago, &renamed}, func() error {
		late++
		since := "never, as far as is known"
		if ago != nil {
			since = "last " + (time.Duration(*ago) * time.Second).String() + " ago"
		}
		found, do := fmt.Sprintf("the spool %s (%s) was empty %s: redactions wait for it", place, name, since), "start that gateway if it does not run, and look into its log if it does"
		if renamed {
			found += "; the folder has another name by now"
			do = "if its disk is not mounted there, stop that gateway, mount it and start it again"
		}
		e.add(Warn, "postgres.spools", found, fmt.Sprintf("%s; if its disk is lost, postern spool forget %s", do, name))
		return nil
	}); err != nil {
		return err
	}
	if late == 0 {
		e.add(OK, "postgres.spools", fmt.Sprintf("none of which nobody has said within %s that it is empty", redaction.SpoolLate), "")
	}
	return nil
}
