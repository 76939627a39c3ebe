// Command afternoon is the handler that a good engineer writes in an afternoon: proof, one insert, one publish, 200.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tidwall/gjson"

	"github.com/postern-gateway/postern/bench/reference/refer"
)

const tableSQL = `
CREATE TABLE IF NOT EXISTS webhook_events (id text PRIMARY KEY, type text NOT NULL, received_at timestamptz NOT NULL, payload jsonb NOT NULL)`

const insertSQL = `INSERT INTO webhook_events (id, type, received_at, payload) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "afternoon:", err)
		os.Exit(1)
	}
}

func run() error {
	url := flag.String("database", "", "URL of PostgreSQL")
	servers := flag.String("nats", "", "URL of NATS")
	flag.Parse()
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(*url)
	if err != nil {
		return err
	}
	config.MaxConns = 16
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, tableSQL); err != nil {
		return err
	}
	nc, err := nats.Connect(*servers)
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	stream := jetstream.StreamConfig{Name: "AFTERNOON", Subjects: []string{"afternoon.>"}, Storage: jetstream.FileStorage, MaxBytes: 16 << 30}
	if _, err := js.CreateOrUpdateStream(ctx, stream); err != nil {
		return err
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
		event := gjson.ParseBytes(body)
		id, kind := event.Get("id").String(), event.Get("type").String()
		tag, err := pool.Exec(c.Request().Context(), insertSQL, id, kind, now, body)
		if err != nil {
			return c.NoContent(http.StatusInternalServerError)
		}
		if tag.RowsAffected() == 0 {
			return c.JSON(http.StatusOK, map[string]bool{"received": true})
		}
		if _, err := js.Publish(c.Request().Context(), "afternoon."+kind, body); err != nil {
			return c.NoContent(http.StatusInternalServerError)
		}
		return c.JSON(http.StatusOK, map[string]bool{"received": true})
	})
}
