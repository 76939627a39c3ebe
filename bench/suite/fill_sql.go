package suite

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/bench/load"
)

const (
	// grownDays is the number of past days over which stored events are spread. Each has a
	// partition.
	grownDays = 30
	// growKeys and growEvents are how many rows one statement inserts.
	growKeys   = 1_000_000
	growEvents = 100_000
)

// growing is a database that is filled with SQL. Its rows are as the gateway would have written
// them.
type growing struct {
	conn         *pgx.Conn
	keys, events int
	// startMS is when the first event was stored. stepMS is the time between two events. Older keys
	// have no events any more.
	startMS int64
	stepMS  float64
	log     func(what string, done, of int)
}

// grow creates a database with a number of keys and events. It returns the name even if it fails.
func (s *Suite) grow(ctx context.Context, keys, events int) (database string, err error) {
	if events > keys {
		return "", fmt.Errorf("%d events need as many keys, not %d", events, keys)
	}
	return s.newFilled(ctx, func(conn *pgx.Conn) error {
		const day = 24 * time.Hour
		start := time.Now().Add(-(grownDays + 1) * day).Truncate(day)
		g := &growing{conn: conn, keys: keys, events: events, startMS: start.UnixMilli(),
			stepMS: float64((grownDays * day).Milliseconds()) / float64(max(events, 1)),
			log:    func(what string, done, of int) { s.log.Info("fill by SQL", "what", what, "done", done, "of", of) }}
		for _, step := range []func(context.Context) error{g.prepare, g.fillKeys, g.fillEvents, g.finish} {
			if err := step(ctx); err != nil {
				return fmt.Errorf("fill by SQL: %w", err)
			}
		}
		return nil
	})
}

// oldSQL defines the name and the id of the n-th key. The first $3 keys have no event. The others
// follow each other from $1 ms on, $2 ms apart.
const oldSQL = `
CREATE FUNCTION pg_temp.old_name(n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$ SELECT 'evt_old' || lpad(n::text,
	12, '0') $$;
CREATE FUNCTION pg_temp.old_id(n bigint, start_ms bigint, step_ms float8, before bigint) RETURNS bigint LANGUAGE sql
	IMMUTABLE AS
  $$ SELECT ((start_ms + floor((n - before) * step_ms)::bigint) << 20) | (n & 1048575) $$;
CREATE TEMP TABLE tail (n int PRIMARY KEY, body bytea NOT NULL);
ALTER TABLE tail ALTER body SET STORAGE plain;
INSERT INTO postern.sources (name, provider) VALUES ('stripe0', 'stripe');
ALTER TABLE postern.event_keys DROP CONSTRAINT event_keys_pkey;
SET synchronous_commit = off;
SET maintenance_work_mem = '1GB';
SET work_mem = '64MB';
SET jit = off`

func (g *growing) prepare(ctx context.Context) error {
	if _, err := g.conn.Exec(ctx, oldSQL); err != nil {
		return err
	}
	if _, err := g.conn.Exec(ctx, "INSERT INTO tail SELECT n - 1, body FROM unnest($1::bytea[]) WITH ORDINALITY AS "+
		"t(body, n)", load.Ends(body)); err != nil {
		return err
	}
	_, err := g.conn.Exec(ctx, "SELECT postern.ensure_partitions($1, $2)", g.startMS, g.startMS+
		(grownDays*24*time.Hour).Milliseconds()-1)
	return err
}

const oldKeysSQL = `
INSERT INTO postern.event_keys (source, key, id, fingerprint)
SELECT 1, substring(sha256(convert_to(pg_temp.old_name(n), 'UTF8')) FOR 16), pg_temp.old_id(n, $1, $2, $3),
	decode(md5(n::text), 'hex')
FROM generate_series($4::bigint, $5) AS n`

func (g *growing) fillKeys(ctx context.Context) error {
	return g.chunks(ctx, "keys", oldKeysSQL, 1, g.keys, growKeys)
}

const oldEventsSQL = `
INSERT INTO postern.events (id, source, event_id, event_type, account, object_type, object_id, occurred_at, received_at,
	origin, api_version, headers,
  verification, fingerprint, delivery_id, delivery_index, body)
SELECT o.id, 1, o.name, 'customer.updated', '', 'customer', 'cus_old' || g.n / 10, date_trunc('second', o.at), o.at,
	'webhook', '2026-09-30.basil',
  jsonb_build_object('User-Agent', jsonb_build_array('Stripe/1.0 (+https://stripe.com/docs/webhooks)'), 'Content-Type',
  	jsonb_build_array('application/json; charset=utf-8'),
    'Stripe-Signature', jsonb_build_array('t=1790000000,v1=' || md5(o.name) || md5(o.name || '.'))),
  jsonb_build_object('scheme', 'stripe-v1', 'secret', 'bench', 'signed_at', date_trunc('second', o.at)),
  	decode(md5(g.n::text), 'hex'), o.id, 0,
  convert_to('{"id":"' || o.name || '","object":"event","api_version":"2026-09-30.basil","created":' || extract(epoch
  	FROM date_trunc('second', o.at))::bigint
    || ',"type":"customer.updated","data":{"previous_attributes":{"balance":1},"object":{"id":"cus_old' || g.n / 10 ||
    	'","object":"customer","balance":2,', 'UTF8') || tail.body
FROM generate_series($4::bigint, $5) AS g(n)
CROSS JOIN LATERAL (SELECT pg_temp.old_name(g.n) AS name, pg_temp.old_id(g.n, $1, $2, $3) AS id,
  to_timestamp((pg_temp.old_id(g.n, $1, $2, $3) >> 20) / 1000.0) AS at) o
JOIN tail ON tail.n = g.n & 63`

func (g *growing) fillEvents(ctx context.Context) error {
	return g.chunks(ctx, "events", oldEventsSQL, g.keys-g.events+1, g.keys, growEvents)
}

// chunks runs a statement for a range of rows, each rows at a time.
func (g *growing) chunks(ctx context.Context, what, sql string, from, to, each int) error {
	for at := from; at <= to; at += each {
		last := min(at+each-1, to)
		if _, err := g.conn.Exec(ctx, sql, g.startMS, g.stepMS, g.keys-g.events+1, at, last); err != nil {
			return err
		}
		g.log(what, last-from+1, to-from+1)
	}
	return nil
}

// finishSQL creates the index of keys again. Its pages are as full as those of an index that grew
// in random key order. A newly built index would be fuller.
var finishSQL = []string{
	"ALTER TABLE postern.event_keys ADD CONSTRAINT event_keys_pkey PRIMARY KEY (source, key) WITH (fillfactor = 70)",
	"ALTER INDEX postern.event_keys_pkey RESET (fillfactor)",
	"VACUUM ANALYZE",
	"CHECKPOINT",
}

func (g *growing) finish(ctx context.Context) error {
	for i, sql := range finishSQL {
		g.log("finish", i, len(finishSQL))
		if _, err := g.conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}
