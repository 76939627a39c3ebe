// Command bare is the ceiling of durable: verification and one batched insert into one plain table with a unique key. Batches form by
// themselves, under the limits given, which are the product's.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"
	"github.com/tidwall/gjson"

	"github.com/postern-gateway/postern/bench/reference/refer"
)

const tableSQL = `
CREATE TABLE IF NOT EXISTS deliveries (key text PRIMARY KEY, received_at timestamptz NOT NULL, body bytea COMPRESSION lz4 NOT NULL)`

const insertSQL = `
INSERT INTO deliveries (key, received_at, body) SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::bytea[]) ON CONFLICT DO NOTHING`

type waiting struct {
	key  string
	at   time.Time
	body []byte
	done chan error
}

type writer struct {
	pool  *pgxpool.Pool
	queue chan *waiting
	most  int
	bytes int
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "bare:", err)
		os.Exit(1)
	}
}

func run() error {
	url := flag.String("database", "", "URL of PostgreSQL")
	most := flag.Int("batch", 256, "most deliveries of an insert")
	bytes := flag.Int("bytes", 8<<20, "most bytes of an insert")
	writers := flag.Int("writers", 2, "inserts under way at once")
	queue := flag.Int("queue", 4096, "most deliveries that wait")
	flag.Parse()
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, *url)
	if err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, tableSQL); err != nil {
		return err
	}
	w := &writer{pool: pool, queue: make(chan *waiting, *queue), most: *most, bytes: *bytes}
	for range *writers {
		go w.run(ctx)
	}
	secret := []byte(os.Getenv("SECRET"))
	return refer.Serve(func(c echo.Context) error {
		now := time.Now()
		body, err := refer.Read(c.Request())
		if err != nil {
			return c.NoContent(http.StatusBadRequest)
		}
		if !refer.Verified(c.Request().Header.Get("Stripe-Signature"), secret, body, now) {
			return c.NoContent(http.StatusUnauthorized)
		}
		d := &waiting{key: gjson.GetBytes(body, "id").String(), at: now, body: body, done: make(chan error, 1)}
		select {
		case w.queue <- d:
		default:
			return c.NoContent(http.StatusServiceUnavailable)
		}
		if err := <-d.done; err != nil {
			return c.NoContent(http.StatusServiceUnavailable)
		}
		return c.JSONBlob(http.StatusOK, []byte(`{"received":true}`))
	})
}

func (w *writer) run(ctx context.Context) {
	for first := range w.queue {
		batch := w.gather(first)
		err := w.insert(ctx, batch)
		for _, d := range batch {
			d.done <- err
		}
	}
}

func (w *writer) gather(first *waiting) []*waiting {
	batch, size := []*waiting{first}, len(first.body)
	for len(batch) < w.most && size < w.bytes {
		select {
		case d := <-w.queue:
			batch, size = append(batch, d), size+len(d.body)
		default:
			return batch
		}
	}
	return batch
}

func (w *writer) insert(ctx context.Context, batch []*waiting) error {
	batch = slices.Clone(batch)
	slices.SortFunc(batch, func(a, b *waiting) int { return cmp.Compare(a.key, b.key) })
	keys, times, bodies := make([]string, len(batch)), make([]time.Time, len(batch)), make([][]byte, len(batch))
	for i, d := range batch {
		keys[i], times[i], bodies[i] = d.key, d.at, d.body
	}
	_, err := w.pool.Exec(ctx, insertSQL, keys, times, bodies)
	return err
}
