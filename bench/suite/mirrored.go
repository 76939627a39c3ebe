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
	// lookedBefore is how long before now the objects of a filled mirror were looked at.
	lookedBefore = time.Hour
)

// The sources of a sweep: an account, and one with a tenth of its objects.
var sweptSources = [...]string{"all", "tenth"}

const sweptSourceSQL = `INSERT INTO sources (name, provider) VALUES ($1, 'stripe') RETURNING number`

// mirrored makes a database whose mirror has the objects of a listing as looks at each have left
// them, but without the looks in the log. It gives the name even where it fails.
func (s *Suite) mirrored(ctx context.Context, l *listing) (database string, err error) {
	if database, err = s.m.NewDatabaseQuietly(ctx); err != nil {
		return "", err
	}
	conn, err := s.m.Connect(ctx, database)
	if err != nil {
		return database, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "SET search_path = postern; SET synchronous_commit = off"); err != nil {
		return database, err
	}
	for i, n := range []int{l.objects, l.objects / 10} {
		var source int32
		if err := conn.QueryRow(ctx, sweptSourceSQL, sweptSources[i]).Scan(&source); err != nil {
			return database, err
		}
		for first := 0; first < n; first += saveAtOnce {
			if err := save(ctx, conn, l, source, first, min(first+saveAtOnce, n)); err != nil {
				return database, fmt.Errorf("fill the mirror of %s: %w", sweptSources[i], err)
			}
			if first%100_000 == 0 {
				s.log.Info("fill the mirror", "source", sweptSources[i], "done", first, "of", n)
			}
		}
	}
	_, err = conn.Exec(ctx, "VACUUM ANALYZE")
	return database, err
}

// save writes the objects from one to another as looks leave them.
func save(ctx context.Context, conn *pgx.Conn, l *listing, source int32, first, last int) error {
	at := time.Now().Add(-lookedBefore)
	objs := make([]*versioning.Object, 0, last-first)
	for n := first; n < last; n++ {
		look := provider.Refetch{Date: at.Truncate(time.Second), Elapsed: time.Millisecond, Lag: time.Second,
			Snapshot: provider.Snapshot{ObjectType: "customer", ObjectID: l.name(n), Body: l.object(nil, n)}}
		observed, err := stripe.Stripe{}.Snapshot(&provider.Source{}, &look.Snapshot)
		if err != nil {
			return err
		}
		in, err := versioning.InputFromRefetch(observed, &look, at)
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
