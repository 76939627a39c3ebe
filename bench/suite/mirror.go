package suite

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	// saveAtOnce is how many objects one transaction writes.
	saveAtOnce = 2000
	// refetchedBefore is how long ago the objects of a filled mirror were refetched.
	refetchedBefore = time.Hour
)

// The sources of an object scan: an account, and one with a tenth of its objects.
var scannedSources = [...]string{"all", "tenth"}

const scannedSourceSQL = `INSERT INTO sources (name, provider) VALUES ($1, 'stripe') RETURNING number`

// mirrored creates a database whose mirror has the objects of a listing as refetches write them.
// The log has no events of these refetches. It returns the name even if it fails.
func (s *Suite) mirrored(ctx context.Context, l *listing) (database string, err error) {
	return s.newFilled(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "SET search_path = postern; SET synchronous_commit = off"); err != nil {
			return err
		}
		for i, n := range []int{l.objects, l.objects / 10} {
			var source int32
			if err := conn.QueryRow(ctx, scannedSourceSQL, scannedSources[i]).Scan(&source); err != nil {
				return err
			}
			for first := 0; first < n; first += saveAtOnce {
				if err := save(ctx, conn, l, source, first, min(first+saveAtOnce, n)); err != nil {
					return fmt.Errorf("fill the mirror of %s: %w", scannedSources[i], err)
				}
				if first%100_000 == 0 {
					s.log.Info("fill the mirror", "source", scannedSources[i], "done", first, "of", n)
				}
			}
		}
		_, err := conn.Exec(ctx, "VACUUM ANALYZE")
		return err
	})
}

// save writes objects first to last, without last, as refetches write them.
func save(ctx context.Context, conn *pgx.Conn, l *listing, source int32, first, last int) error {
	at := time.Now().Add(-refetchedBefore)
	objs := make([]*versioning.Object, 0, last-first)
	for n := first; n < last; n++ {
		refetch := provider.Refetch{Date: at.Truncate(time.Second), Elapsed: time.Millisecond, Lag: time.Second,
			Snapshot: provider.Snapshot{ObjectType: "customer", ObjectID: l.name(n), Body: l.object(nil, n)}}
		observed, err := stripe.Stripe{}.Snapshot(&provider.Source{}, &refetch.Snapshot)
		if err != nil {
			return err
		}
		in, err := versioning.InputFromRefetch(observed, &refetch, at)
		if err != nil {
			return err
		}
		o := &versioning.Object{Key: versioning.Key{Source: source, Type: "customer", ID: l.name(n)},
			Row: versioning.NewRow(), LastEventID: 1}
		versioning.Apply(&o.Row, in)
		objs = append(objs, o)
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return versioning.Save(ctx, tx, versioning.Mirror, objs) })
}
