// Command consume-go prints each change of a Stripe subscription. It is a minimal consumer of
// Postern's change feed. It uses only the contract of the feed (docs/reference/feeds.md) and no
// package of Postern.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// change is the part of the envelope (schema 1) that this program uses.
type change struct {
	Source, Account string
	ObjectID        string `json:"object_id"`
	Revision        int64
	// Redacted: the state was erased for good, and the consumer must erase its copies.
	Deleted, Redacted bool
	State             struct{ Status string }
}

// consume calls act for each change of a subscription that is newer than the last successful one,
// and acknowledges the message after act has succeeded. After an error of act, the message is
// delivered again in 5 s. consume returns when ctx ends or the consumer is lost.
func consume(ctx context.Context, js jetstream.JetStream, act func(change) error) error {
	consumer, err := js.CreateOrUpdateConsumer(ctx, "POSTERN_CHANGES", jetstream.ConsumerConfig{
		Durable: "consume-go", FilterSubject: "postern.changes.*.subscription", AckPolicy: jetstream.AckExplicitPolicy,
	})
	if err != nil {
		return fmt.Errorf("make consumer: %w", err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("read messages: %w", err)
	}
	defer messages.Stop()
	// A real consumer stores the revision in the transaction in which act writes its data.
	highest := map[string]int64{}
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("read next message: %w", err)
		}
		var c change
		if err := json.Unmarshal(m.Data(), &c); err != nil {
			return fmt.Errorf("read change: %w", err)
		}
		key := c.Source + "/" + c.Account + "/" + c.ObjectID
		if c.Revision > highest[key] { // a duplicate or an older change is only acknowledged
			if act(c) != nil {
				// If this request is lost, the message is delivered again after 30 s.
				_ = m.NakWithDelay(5 * time.Second)
				continue
			}
			highest[key] = c.Revision
		}
		_ = m.Ack() // if it is lost, the change is delivered again and skipped
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "consume-go:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	url, err := natsURL()
	if err != nil {
		return err
	}
	nc, err := nats.Connect(url, nats.MaxReconnects(-1))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	return consume(ctx, js, func(c change) error {
		if c.Redacted {
			fmt.Printf("%s was redacted: erase it and everything derived from it (revision %d)\n", c.ObjectID,
				c.Revision)
			return nil
		}
		fmt.Printf("%s is %s (deleted %t, revision %d)\n", c.ObjectID, c.State.Status, c.Deleted, c.Revision)
		return nil
	})
}

// natsURL returns NATS_URL, or else the URL of the dev instance in POSTERN_DIR (default .postern).
func natsURL() (string, error) {
	if url := os.Getenv("NATS_URL"); url != "" {
		return url, nil
	}
	dir := os.Getenv("POSTERN_DIR")
	if dir == "" {
		dir = ".postern"
	}
	b, err := os.ReadFile(filepath.Join(dir, "instance.json"))
	if err != nil {
		return "", fmt.Errorf("NATS_URL is not set and there is no dev instance: %w", err)
	}
	var instance struct {
		URL string `json:"nats_url"`
	}
	if err := json.Unmarshal(b, &instance); err != nil {
		return "", fmt.Errorf("read instance: %w", err)
	}
	return instance.URL, nil
}
