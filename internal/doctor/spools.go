package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/redaction"
)

// spoolsSQL finds spools that are told of, since when they were not empty (null: never told), and whether a place has one under another name that is empty more lately.
const spoolsSQL = `
SELECT s.spool, s.place, CASE WHEN isfinite(s.empty_at) THEN extract(epoch FROM clock_now() - s.empty_at)::bigint END,
  EXISTS (SELECT FROM spools o WHERE o.place = s.place AND o.spool <> s.spool AND o.empty_at > s.empty_at)
FROM spools s WHERE s.empty_at < clock_now() - make_interval(secs => $1) ORDER BY s.place, s.spool`

// spools looks for those that redactions wait for.
func (e *examination) spools(ctx context.Context) error {
	rows, err := e.Pool.Query(ctx, spoolsSQL, redaction.SpoolLate.Seconds())
	if err != nil {
		return err
	}
	late := 0
	var spool, place string
	var ago *int64
	var renamed bool
	if _, err := pgx.ForEachRow(rows, []any{&spool, &place, &ago, &renamed}, func() error {
		late++
		since := "never, as far as is known"
		if ago != nil {
			since = "last " + (time.Duration(*ago) * time.Second).String() + " ago"
		}
		found, do := fmt.Sprintf("the spool %s (%s) was empty %s: redactions wait for it", place, spool, since), "start that gateway if it does not run, and look into its log if it does"
		if renamed {
			found += "; the folder has another name by now"
			do = "if its disk is not mounted there, stop that gateway, mount it and start it again"
		}
		e.add(Warn, "postgres.spools", found, fmt.Sprintf("%s; if its disk is lost, postern spool forget %s", do, spool))
		return nil
	}); err != nil {
		return err
	}
	if late == 0 {
		e.add(OK, "postgres.spools", fmt.Sprintf("none of which nobody has said within %s that it is empty", redaction.SpoolLate), "")
	}
	return nil
}
