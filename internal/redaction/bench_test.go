package redaction_test

import (
	"flag"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/testkit/applied"
)

var mentionEvents = flag.Int("mention.events", 100_000, "how many events of 2.4 KB BenchmarkLook_mentions looks through")

// BenchmarkLook_mentions looks through a log for a person whom none of its events mentions.
func BenchmarkLook_mentions(b *testing.B) {
	l := applied.New(b)
	first := events.FirstID(time.Now().Add(-time.Hour))
	l.DB.Exec(b, `SELECT ensure_partitions($1, $1)`, events.Time(first).UnixMilli())
	l.DB.Exec(b, `INSERT INTO events (id, source, event_id, event_type, account, object_type, object_id, received_at, origin, api_version, headers, verification, fingerprint,
		delivery_id, delivery_index, body) SELECT $1::bigint + i, $2, 'e' || i, 't', '', 'thing', 'o' || i, now(), 'webhook', '', '{"Content-Type": "application/json"}', '{}', '', $1::bigint + i, 0,
		convert_to(format('{"id": "evt_%s", "customer": "cus_%s", "email": "someone-%s@example.org", "lines": [%s]}', i, i, i,
		  (SELECT string_agg(format('{"key_%s": "%s"}', j, md5(i::text || j)), ',') FROM generate_series(1, 48) AS j)), 'UTF8') FROM generate_series(1, $3::int) AS i`,
		first, l.Source, *mentionEvents)
	var order redaction.Order
	for _, value := range []string{"cus_1Postern0Ada0001", "ada.lovelace@example.org"} {
		f, err := redaction.NewMention(value)
		if err != nil {
			b.Fatal(err)
		}
		order.Finds = append(order.Finds, f)
	}
	for b.Loop() {
		look, err := redaction.Look(b.Context(), l.Operator, &order, nil)
		if err != nil || look.Looked != int64(*mentionEvents) || look.Events != 0 {
			b.Fatalf("%+v, %v", look, err)
		}
	}
	b.ReportMetric(b.Elapsed().Seconds()*1e6/float64(*mentionEvents)/float64(b.N), "s/million")
}
