package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// What is left to publish is told from both sides, and without NATS what the log knows.
func TestStreamStatus(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", `{"id":"evt_1"}`)
	b.append(t, "stripe", "evt_2", `{"id":"evt_2"}`)
	r := b.run(t, "stream", "status")
	r.want(t, 1, "events without an outcome    2, the oldest since ", "the streams are not known: nats.url is not set here")
	r.want(t, 1, "of these in no stream        not known\n", "")
	r.want(t, 1, "auditor                      none: no processor runs\n", "")
	nats := testkit.JetStream(t)
	conn, err := stream.Connect(stream.Options{URL: nats.URL, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	limits := stream.DefaultLimits
	limits.MaxBytes = 1 << 20
	if err := conn.Ensure(t.Context(), limits); err != nil {
		t.Fatal(err)
	}
	if ack := conn.PublishEvents(t.Context(), []stream.Event{{Source: "stripe"}})[0]; ack.Err != nil {
		t.Fatal(ack.Err)
	}
	b.write(t, &config.Instance{DatabaseURL: b.db.URL, NATSURL: nats.URL})
	r = b.run(t, "stream", "status")
	r.want(t, 0, "of these in no stream        about 1\n", "")
	r.want(t, 0, "\nPOSTERN_EVENTS: 1 messages of at most 1000000, 0 MiB of at most 1\nCONSUMER   PENDING  UNACKNOWLEDGED  REDELIVERED  WAITING\nprocessor  1        0               0            0\n", "")
	r.want(t, 0, "\nPOSTERN_RUNS: there is none\n", "")
	var told admin.StreamView
	if r := b.run(t, "stream", "status", "-o", "json"); json.Unmarshal([]byte(r.out), &told) != nil || told.Unapplied.Count != 2 || told.NotInStream != 1 || len(told.Streams) != 4 || told.Trouble != "" {
		t.Errorf("%+v", r)
	}
	nats.Stop(t)
	b.run(t, "stream", "status").want(t, 1, "events without an outcome    2", "the streams are not known: no server of nats://127.0.0.1:")
}

// Who asks for a pass is told what it has published, once it has ended.
func TestStreamHeal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.run(t, "stream", "heal", "--no-wait", "--reason", "a wiped disk").want(t, 0, "Pass 1 is asked for; postern stream status shows", "")
	b.run(t, "stream", "status").want(t, 1, "asked for                    1 pass by postern stream heal, not ended yet\n", "")
	ended := make(chan struct{})
	go func() { // as the auditor does
		defer close(ended)
		testkit.Eventually(t, 60*time.Second, func() error {
			tag, err := b.db.Pool.Exec(t.Context(), `UPDATE auditor_passes SET ended_at = clock_now(), missing = 7, due = 1 WHERE id = 2`)
			if err == nil && tag.RowsAffected() == 0 {
				err = fmt.Errorf("nobody has asked yet")
			}
			return err
		})
	}()
	r := b.run(t, "stream", "heal", "-o", "json")
	<-ended
	var v processor.HealView
	if json.Unmarshal([]byte(r.out), &v) != nil || r.status != 0 || v.Missing != 7 || v.Heal != 2 || v.EndedAt == nil || v.WantedBy == "" {
		t.Errorf("%+v", r)
	}
	if said := healWords(&v); said != "Pass 2 has ended: 7 events without an outcome and 1 failed event published again." {
		t.Error(said)
	}
	var by, reason string
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT wanted_by, reason FROM auditor_passes WHERE id = 1`).Scan(&by, &reason); err != nil || by != operator().Name || reason != "a wiped disk" {
		t.Errorf("%q, %q, %v", by, reason, err)
	}
}
