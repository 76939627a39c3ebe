// Command onebyone applies events one message, one transaction, one acknowledgement at a time, on as many goroutines as it is told. It
// reads the product's own stream through a consumer of its own and keeps a mirror of its own: the latest state of each object by its
// version, and an outcome for each event.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/tidwall/gjson"

	"github.com/postern-gateway/postern/bench/reference/refer"
)

const tablesSQL = `
CREATE TABLE IF NOT EXISTS one_objects (id text PRIMARY KEY, version bigint NOT NULL, state jsonb NOT NULL, event text NOT NULL) WITH (fillfactor = 70);
CREATE TABLE IF NOT EXISTS one_outcomes (event text PRIMARY KEY, object text NOT NULL, applied boolean NOT NULL)`

const applySQL = `
INSERT INTO one_objects AS o (id, version, state, event) VALUES ($1, $2, $3, $4)
ON CONFLICT (id) DO UPDATE SET version = excluded.version, state = excluded.state, event = excluded.event WHERE o.version <= excluded.version`

const outcomeSQL = `INSERT INTO one_outcomes (event, object, applied) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "onebyone:", err)
		os.Exit(1)
	}
}

func run() error {
	url := flag.String("database", "", "URL of PostgreSQL")
	servers := flag.String("nats", "", "URL of NATS")
	goroutines := flag.Int("goroutines", 2, "events applied at once")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	pool, err := pgxpool.New(ctx, *url)
	if err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, tablesSQL); err != nil {
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
	consumer, err := js.CreateOrUpdateConsumer(ctx, "POSTERN_EVENTS", jetstream.ConsumerConfig{Durable: "onebyone", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 20_000})
	if err != nil {
		return err
	}
	iter, err := consumer.Messages(jetstream.PullMaxMessages(1000))
	if err != nil {
		return err
	}
	if err := refer.Ready("none"); err != nil {
		return err
	}
	return work(ctx, *goroutines, pool, iter)
}

// work applies until ctx ends or a message cannot be applied, which is not expected of a reference.
func work(ctx context.Context, goroutines int, pool *pgxpool.Pool, iter jetstream.MessagesContext) error {
	messages, failed := make(chan jetstream.Msg), make(chan error, goroutines+1)
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for m := range messages {
				if err := apply(ctx, pool, m); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	go func() {
		for {
			m, err := iter.Next(jetstream.NextContext(ctx))
			if err != nil {
				failed <- err
				return
			}
			messages <- m
		}
	}()
	err := <-failed
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func apply(ctx context.Context, pool *pgxpool.Pool, m jetstream.Msg) error {
	event := gjson.ParseBytes(m.Data())
	id, object := event.Get("id").String(), event.Get("data.object")
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		key := object.Get("object").String() + "/" + object.Get("id").String()
		tag, err := tx.Exec(ctx, applySQL, key, event.Get("created").Int(), []byte(object.Raw), id)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, outcomeSQL, id, key, tag.RowsAffected() > 0)
		return err
	})
	if err != nil {
		return err
	}
	return m.Ack()
}
