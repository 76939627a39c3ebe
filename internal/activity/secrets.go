package activity

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	dto "github.com/prometheus/client_model/go"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

type sourceSecret struct{ source, secret string }

// secretOf returns the source and the secret that a counter of verified requests is about.
func secretOf(m *dto.Metric) (of sourceSecret) {
	for _, l := range m.GetLabel() {
		if l.GetName() == "source" {
			of.source = l.GetValue()
		} else {
			of.secret = events.SanitizeText(l.GetValue())
		}
	}
	return of
}

// addSecretsSQL adds to the current hour of each secret, in the order of the keys. It returns the
// secrets of registered sources.
const addSecretsSQL = `
WITH d AS MATERIALIZED (
  SELECT s.number, d.* FROM unnest($1::text[], $2::text[], $3::int[]) AS d(name, secret, verified)
  JOIN sources s ON s.name = d.name ORDER BY s.number, d.secret
), added AS (
  INSERT INTO activity_secrets AS a (source, secret, hour, verified, last_at)
  SELECT number, secret, floor(extract(epoch FROM clock_now()) / 3600)::int, verified, clock_now() FROM d
  ON CONFLICT (source, hour, secret) DO UPDATE SET verified = a.verified + excluded.verified,
    last_at = greatest(a.last_at, excluded.last_at)
)
SELECT name, secret FROM d`

// reportSecrets adds what the secrets verified since the last report.
func (r *Reporter) reportSecrets(ctx context.Context, verified map[sourceSecret]int64) error {
	var sources, secrets []string
	var numbers []int32
	for of, n := range verified {
		if more := n - r.reportedSecrets[of]; more > 0 {
			sources, secrets = append(sources, of.source), append(secrets, of.secret)
			numbers = append(numbers, int32(min(more, math.MaxInt32)))
		}
	}
	if len(sources) == 0 {
		return nil
	}
	added, err := postgres.Collect(ctx, r.Pool, func(row pgx.CollectableRow) (of sourceSecret, err error) {
		return of, row.Scan(&of.source, &of.secret)
	}, addSecretsSQL, sources, secrets, numbers)
	if err != nil {
		return fmt.Errorf("report the use of secrets: %w", err)
	}
	for _, of := range added {
		r.reportedSecrets[of] = verified[of]
	}
	return nil
}

const (
	// keepSecrets is how long the use of secrets is stored.
	keepSecrets = 30 * 24 * time.Hour

	deleteSecretsSQL = `DELETE FROM activity_secrets a USING sources s WHERE a.source = s.number
		AND a.hour < floor(extract(epoch FROM clock_now()) / 3600)::int - $1::int`
)

// SecretHours is the number of hours over which the shares of secrets are computed.
const SecretHours = 24

// SecretUse is how much a signing secret of a source was used.
type SecretUse struct {
	// Secret is its name in the configuration.
	Secret string `json:"secret"`
	// LastAt is when it last verified a request, reported each 10 seconds. A secret that verified
	// none in the last 30 days is not in the list.
	LastAt events.Instant `json:"last_at"`
	// Verified is about the number of requests that it verified in the last 24 hours, and Hours is
	// the same by hour, the current one last.
	Verified int64   `json:"verified"`
	Hours    []int64 `json:"hours"`
	// Share is its part of all verified requests of the last 24 hours, from 0 to 1.
	Share float64 `json:"share"`
	// Removable: it was used, and for 24 hours other secrets verified all requests.
	Removable bool `json:"removable"`
}

// secretsSQL reads a row for each hour of the secrets of source $1, with how many hours ago it was.
// A source has at most 720 rows for each of its secrets.
const secretsSQL = `
SELECT secret, last_at, verified, floor(extract(epoch FROM clock_now()) / 3600)::int - hour,
	last_at < clock_now() - $2 * interval '1 hour'
FROM activity_secrets WHERE source = $1 ORDER BY secret, hour`

// SecretUses returns how much each secret of a source was used, by its name.
func SecretUses(ctx context.Context, db postgres.DB, source int32) ([]SecretUse, error) {
	all := []SecretUse{}
	var total int64
	_, err := postgres.Collect(ctx, db, func(row pgx.CollectableRow) (_ struct{}, err error) {
		var hour SecretUse
		var ago int
		if err := row.Scan(&hour.Secret, &hour.LastAt, &hour.Verified, &ago, &hour.Removable); err != nil {
			return struct{}{}, err
		}
		if len(all) == 0 || all[len(all)-1].Secret != hour.Secret {
			all = append(all, SecretUse{Secret: hour.Secret, Hours: make([]int64, SecretHours)})
		}
		use := &all[len(all)-1]
		use.LastAt, use.Removable = hour.LastAt, hour.Removable
		if ago = max(0, ago); ago < SecretHours {
			use.Hours[SecretHours-1-ago] += hour.Verified
			use.Verified += hour.Verified
			total += hour.Verified
		}
		return struct{}{}, nil
	}, secretsSQL, source, SecretHours)
	if err != nil {
		return nil, fmt.Errorf("read the use of secrets: %w", err)
	}
	for i := range all {
		all[i].Removable = all[i].Removable && total > all[i].Verified
		if total > 0 {
			all[i].Share = float64(all[i].Verified) / float64(total)
		}
	}
	return all, nil
}
