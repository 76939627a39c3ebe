package ingest_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// apiDelivery is a request of the user's own service, with the given body and headers ("name:
// value").
func apiDelivery(body string, headers ...string) *provider.Delivery {
	d := &provider.Delivery{Header: http.Header{"Authorization": {"Bearer " + apiToken}}, Body: []byte(body)}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		d.Header.Set(name, value)
	}
	return d
}

// cloudEvent is a CloudEvent in the JSON format.
func cloudEvent(id, data string) string {
	return `{"specversion":"1.0","id":"` + id +
		`","source":"/s","type":"com.example.order.updated","subject":"o1","data":` + data + `}`
}

// cloudEventDelivery is a request with one CloudEvent.
func cloudEventDelivery(id, data string) *provider.Delivery {
	return apiDelivery(cloudEvent(id, data), cloudEventType)
}

// batch is a request with several CloudEvents.
func batch(events ...string) *provider.Delivery {
	return apiDelivery("["+strings.Join(events, ",")+"]", cloudEventBatchType)
}

const (
	cloudEventType      = "Content-Type: application/cloudevents+json"
	cloudEventBatchType = "Content-Type: application/cloudevents-batch+json"
	jsonType            = "Content-Type: application/json"
)

// receipts parses a response that is a list of receipts.
func (a response) receipts(t testing.TB) (all []receipt) {
	t.Helper()
	if err := json.Unmarshal(a.body, &all); err != nil || a.status != 200 {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	return all
}

// wantEvents checks the number of events and keys, and that there is no conflict.
func (b *testBundle) wantEvents(t *testing.T, events int) {
	t.Helper()
	b.wantRows(t, events, `events`)
	b.wantRows(t, events, `event_keys`)
	b.wantRows(t, 0, `event_conflicts`)
}

// In each mode, the same delivery gets the same receipt again. The same key with other content is
// rejected and changes nothing.
func TestAPISource_repeatedKey_returnsReceiptOrConflict(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for name, c := range map[string]struct{ first, again, other *provider.Delivery }{
		"structured": {cloudEventDelivery("a", `{"version":1}`),
			apiDelivery(" "+cloudEvent("a", `{"version": 1.0}`), cloudEventType),
			cloudEventDelivery("a", `{"version":2}`)},
		"binary": {apiDelivery(`{"version":1}`, jsonType, "ce-specversion: 1.0", "ce-id: b", "ce-source: /s",
			"ce-type: t"),
			apiDelivery(`{"specversion":"1.0","id":"b","source":"/s","type":"t",`+
				`"datacontenttype":"application/json","data":{"version":1}}`, cloudEventType),
			apiDelivery(`{"version":1}`, jsonType, "ce-specversion: 1.0", "ce-id: b", "ce-source: /s",
				"ce-type: other")},
		"JSON": {apiDelivery(`{"type":"t"}`, jsonType, `Idempotency-Key: "c"`),
			apiDelivery(`{"type":"t"}`, jsonType, `Idempotency-Key: c`),
			apiDelivery(`{"type":"u"}`, jsonType, `Idempotency-Key: "c"`)},
	} {
		first, again := b.post(t, "api", c.first), b.post(t, "api", c.again)
		if r := first.receipt(t); r.Duplicate || r.ID == "" {
			t.Errorf("%s: %s", name, first.body)
		}
		if want := strings.Replace(string(first.body), `"duplicate":false`, `"duplicate":true`,
			1); string(again.body) != want || again.status != first.status {
			t.Errorf("%s: %d %s, want %s", name, again.status, again.body, want)
		}
		other := b.post(t, "api", c.other)
		other.wantProblem(t, 422, "key-reused")
		if key := first.receipt(t).EventID; !strings.Contains(string(other.body), key) {
			t.Errorf("%s: %s does not name %q", name, other.body, key)
		}
		if r := b.post(t, "api", c.first).receipt(t); !r.Duplicate || r.ID != first.receipt(t).ID {
			t.Errorf("%s: receipt %+v after the rejection", name, r)
		}
	}
	// all modes share one space of keys
	b.post(t, "api", apiDelivery(`{"type":"t"}`, jsonType, `Idempotency-Key: "/s a"`)).wantProblem(t, 422, "key-reused")
	b.wantEvents(t, 3)
	b.wantPublished(t, 3)
	b.wantCounter(t, 4, "postern_deliveries_total", "source=api", "result=conflict")
}

// A service of the user gets the reason why its delivery is not stored; a client without a token
// gets a challenge. Each rejection of a verified delivery has a log line; rejections of unverified
// ones share one.
func TestAPISource_invalidDelivery_responseNamesReason(t *testing.T) {
	t.Parallel()
	log, tune := captureLog(slog.LevelInfo)
	b := setup(t, tune)
	b.post(t, "api", cloudEventDelivery("1", "1")).receipt(t)
	b.post(t, "api", cloudEventDelivery("2", "2")).receipt(t)
	long := "Content-Type: text/" + strings.Repeat("k", 3000)
	for _, token := range []string{"Bearer wrong", "Basic x"} {
		b.post(t, "api", batch(cloudEvent("new", "1"), cloudEvent("1", "0"))).wantProblem(t, 422, "key-reused")
		b.post(t, "api", apiDelivery(`{}`, jsonType)).wantProblem(t, 400, "invalid")
		b.post(t, "api", apiDelivery(`a=1`, long, "Idempotency-Key: a")).wantProblem(t, 415, "invalid")
		b.post(t, "api", apiDelivery(`[`+strings.Repeat("1,", 1000)+`1]`, cloudEventBatchType)).wantProblem(t, 413,
			"invalid")
		a := b.post(t, "api", apiDelivery(`{}`, jsonType, "Authorization: "+token))
		a.wantProblem(t, 401, "unauthenticated")
		if got := a.header.Get("WWW-Authenticate"); got != "Bearer" {
			t.Errorf("WWW-Authenticate %q", got)
		}
	}
	if a := b.post(t, "stripe", apiDelivery(`{}`)); a.header.Get("WWW-Authenticate") != "" {
		t.Error("the response to a provider's webhook asks for a token")
	}
	b.wantEvents(t, 2)
	b.waitRows(t, 2, `rejections WHERE source = $1`, b.endpoints["api"].Number)
	for _, table := range []string{"events", "rejections"} {
		b.wantRows(t, 0, table+` x WHERE x::text ILIKE '%bearer wrong%' OR x::text LIKE '%`+apiToken+`%'
			OR headers ? 'Authorization'`)
	}
	b.wantRows(t, 2, `events WHERE verification->>'secret' = 'main' AND verification->>'scheme' = 'bearer'`)
	lines := map[string]int{}
	for _, l := range log.withMessage(t, "delivery") {
		detail := fmt.Sprint(l["detail"])
		if len(detail) > 1000 {
			t.Errorf("the detail has %d bytes", len(detail))
		}
		lines[fmt.Sprintf("%v %v %v %.27s", l["result"], l["status"], l["event_id"], detail)]++
	}
	want := map[string]int{
		"conflict 422 /s new Stored before with other co": 2,
		"invalid 400 <nil> the header Idempotency-Key ":   2,
		"rejected 401 <nil> <nil>":                        3, // one per source and reason
		"accepted 200 /s 1 <nil>":                         1,
		"accepted 200 /s 2 <nil>":                         1,
	}
	others := 0 // 413 and 415
	for l, n := range lines {
		if _, expected := want[l]; !expected && strings.HasPrefix(l, "invalid 41") && n == 2 {
			others++
			delete(lines, l)
		}
	}
	if diff := cmp.Diff(want, lines); diff != "" || others != 2 {
		t.Errorf("%d other rejections; log lines (-want +got):\n%s", others, diff)
	}
}

// All events of a batch are stored or none, and each has a receipt.
func TestAPISource_batchWithConflict_storesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	one, two, three, four := cloudEvent("1", "1"), cloudEvent("2", "2"), cloudEvent("3", "3"), cloudEvent("4", "4")
	first := b.post(t, "api", batch(one, two)).receipts(t)
	if len(first) != 2 || first[0].EventID != "/s 1" || first[1].EventID != "/s 2" || first[0].Duplicate ||
		first[1].Duplicate {
		t.Errorf("receipts %+v", first)
	}
	again := b.post(t, "api", batch(three, one, three)).receipts(t)
	if len(again) != 3 || again[0].Duplicate || !again[1].Duplicate || again[1].ID != first[0].ID ||
		!again[2].Duplicate || again[2].ID != again[0].ID {
		t.Errorf("receipts %+v", again)
	}
	if r := b.post(t, "api", batch(two)).receipts(t); len(r) != 1 ||
		!r[0].Duplicate || r[0].ID != first[1].ID {
		t.Errorf("receipts of a batch of one: %+v", r)
	}
	b.wantEvents(t, 3)
	for name, d := range map[string]*provider.Delivery{
		"one of three differs": batch(four, cloudEvent("2", "0"), cloudEvent("5", "5")),
		"two of one key":       batch(four, cloudEvent("6", "6"), cloudEvent("6", "7")),
		"the only one":         batch(cloudEvent("1", "0")),
	} {
		a := b.post(t, "api", d)
		a.wantProblem(t, 422, "key-reused")
		if strings.Contains(string(a.body), "/s 4") || strings.Contains(string(a.body), "/s 5") {
			t.Errorf("%s: the response names a new key: %s", name, a.body)
		}
	}
	if a := b.post(t, "api", batch()); a.status != 200 ||
		strings.TrimSpace(string(a.body)) != "[]" {
		t.Errorf("an empty batch: %d %s", a.status, a.body)
	}
	b.wantEvents(t, 3)
	b.wantPublished(t, 3)
	if r := b.post(t, "api", batch(four)).receipts(t); r[0].Duplicate {
		t.Error("the rejected batch stored a key")
	}
}

// A key that arrives twice at the same moment is stored once. The second delivery waits and gets
// the receipt of the first. Other content is rejected, with all events of its batch.
func TestAPISource_keyInFlight_waitsForReceipt(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	release := b.lockLog(t)
	first := b.send(t, t.Context(), "api", cloudEventDelivery("1", "1"))
	b.waitBlocked(t, 1)
	second := b.send(t, t.Context(), "api", cloudEventDelivery("1", "1"))
	b.waitBlocked(t, 2)
	release() // either may be stored first now
	if r, s := (<-first).receipt(t), (<-second).receipt(t); r.ID != s.ID || r.Duplicate == s.Duplicate {
		t.Errorf("receipts %+v and %+v", r, s)
	}
	b.post(t, "api", cloudEventDelivery("1", "0")).wantProblem(t, 422, "key-reused")
	b.post(t, "api", batch(cloudEvent("2", "2"), cloudEvent("1", "0"))).wantProblem(t, 422, "key-reused")
	b.wantEvents(t, 1)
}

// If the response to a commit is lost, a retry gets the receipt, from this gateway or another one.
// There is one event.
func TestAPISource_lostResponse_retryGetsReceipt(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	proxy, tune := proxiedPool(t, db)
	b := setupOn(t, db, func(o *ingest.Options) {
		tune(o)
		o.Settings.Deadline, o.Settings.StallAfter = 2*time.Second, time.Second
	})
	b.postUntilAccepted(t, cloudEventDelivery("0", "0")) // prepares the statement
	t.Cleanup(proxy.Restore)
	proxy.StallResponses()
	single := cloudEventDelivery("3", "3")
	b.post(t, "api", single).wantProblem(t, 503, "unavailable")
	b.waitRows(t, 2, `events`)
	other := setupOn(t, db, nil) // another gateway, or the same one after a crash
	if r := other.post(t, "api", single).receipt(t); !r.Duplicate {
		t.Errorf("receipt %+v", r)
	}
	both := batch(cloudEvent("1", "1"), cloudEvent("2", "2"))
	if r := other.post(t, "api", both).receipts(t); r[0].Duplicate || r[1].Duplicate {
		t.Errorf("receipts %+v", r)
	}
	proxy.Restore()
	if r := b.postUntilAccepted(t, single); !r.Duplicate {
		t.Errorf("receipt %+v", r)
	}
	b.wantEvents(t, 4)
}

// postUntilAccepted posts until the response is a receipt.
func (b *testBundle) postUntilAccepted(t *testing.T, d *provider.Delivery) receipt {
	t.Helper()
	return b.waitStatus(t, "api", d, http.StatusOK).receipt(t)
}

// While the database is unavailable nothing is acknowledged, unless the source allows it, however
// often the sender repeats its delivery. A spooled delivery that conflicts is stored as a conflict,
// as for other sources.
func TestAPISource_databaseUnavailable_spoolsOnlyIfAllowed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ stalls, requireCommit bool }{
		"refuses connections, commit required": {false, true},
		"refuses connections, spool allowed":   {false, false},
		"stalls, commit required":              {true, true},
		"stalls, spool allowed":                {true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupSpool(t, func(o *ingest.Options) {
				changeEndpoint(o, "api", func(ep *ingest.Endpoint) { ep.RequireCommit = c.requireCommit })
				o.Settings.Deadline = 2 * time.Second
			})
			b.post(t, "api", cloudEventDelivery("1", "1")).receipt(t)
			t.Cleanup(b.proxy.Restore)
			if c.stalls {
				b.proxy.Stall()
			} else {
				b.proxy.Cut()
			}
			events, conflicts := 2, 0
			for range 3 {
				if a := b.post(t, "api", cloudEventDelivery("2", "2")); c.requireCommit {
					a.wantProblem(t, 503, "unavailable")
				} else {
					a.wantSpooled(t, "/s 2")
				}
			}
			if !c.requireCommit {
				b.post(t, "api", cloudEventDelivery("1", "0")).wantSpooled(t, "/s 1")
				if a := b.post(t, "api", batch(cloudEvent("3", "3"))); a.status != 200 ||
					!strings.HasPrefix(string(a.body), `[{"event_id":"/s 3","spooled":true}`) {
					t.Errorf("%d %s", a.status, a.body)
				}
				events, conflicts = 3, 1
			}
			b.proxy.Restore()
			b.postUntilAccepted(t, cloudEventDelivery("2", "2"))
			b.waitEmpty(t, events)
			b.wantRows(t, conflicts, `event_conflicts`)
		})
	}
}

// Each event of a batch is stored, published and read as if it was sent alone, so that one can be
// redacted without the others.
func TestAPISource_batch_eventsAreSeparateDeliveries(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	one, two := cloudEvent("1", `{"version": 1}`), cloudEvent("2", `{"version": 2}`)
	receipts := b.post(t, "api", apiDelivery("["+one+" ,\n"+two+"]", cloudEventBatchType)).receipts(t)
	for i, want := range []string{one, two} {
		b.wantRows(t, 1, `events WHERE id = $1::bigint AND body = $2 AND delivery_id = id AND delivery_index = 0
			AND headers->>'Content-Type' = 'application/cloudevents+json'`, receipts[i].ID, []byte(want))
	}
	b.wantPublished(t, 2)
	for range 2 {
		e := <-b.published
		ep := b.endpoints["api"]
		o, err := ep.Provider.Observe(ep.Config, &e.StoredEvent)
		if err != nil || e.Key[3:] != fmt.Sprint(o.At) || e.BodyInLog || e.Index != 0 ||
			string(e.Body) != map[string]string{"/s 1": one, "/s 2": two}[e.Key] {
			t.Errorf("published %+v, observed %+v, %v", e, o, err)
		}
	}
}

// The headers of a batch are stored with each of its events, so they are truncated. A single event
// has its complete headers.
func TestAPISource_batch_headersAreTruncated(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	agent := "User-Agent: " + strings.Repeat("a", 255) + strings.Repeat("é", 4000)
	b.post(t, "api", apiDelivery("["+cloudEvent("1", "1")+","+cloudEvent("2", "2")+"]", cloudEventBatchType,
		agent)).receipts(t)
	b.post(t, "api", apiDelivery(cloudEvent("3", "3"), cloudEventType, agent)).receipt(t)
	stored := b.db.QueryStrings(t, `SELECT event_id || ' ' || octet_length(headers->>'User-Agent') || ' ' ||
		(headers->>'Content-Type') FROM events ORDER BY event_id`)
	of := " application/cloudevents+json"
	// half a character becomes a replacement character
	if want := []string{"/s 1 258" + of, "/s 2 258" + of, "/s 3 8255" + of}; !slices.Equal(stored, want) {
		t.Errorf("stored %q, want %q", stored, want)
	}
}

var (
	// codeBlock matches a code block of a page, with its language.
	codeBlock = regexp.MustCompile("(?s)```(yaml|sh|json)\n(.*?)```")
	// shellWord matches a word of a shell command, as far as the page needs it.
	shellWord = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)
	// variableField matches fields that differ between two runs.
	variableField = regexp.MustCompile(`"(id|received_at)":"[^"]*"`)
)

// curlRequest returns the request of a curl command.
func curlRequest(t *testing.T, text string) *provider.Delivery {
	t.Helper()
	words := shellWord.FindAllString(strings.ReplaceAll(strings.ReplaceAll(text, "\\\n", " "), "$TOKEN", apiToken), -1)
	for i, w := range words {
		words[i] = strings.Trim(w[:1], `'"`) + w[1:len(w)-1] + strings.Trim(w[len(w)-1:], `'"`)
	}
	if len(words) < 2 || words[0] != "curl" || words[1] != "$URL" || len(words)%2 != 0 {
		t.Fatalf("cannot parse the command %q", words)
	}
	d := &provider.Delivery{Header: http.Header{}}
	for pair := range slices.Chunk(words[2:], 2) {
		switch pair[0] {
		case "-H":
			name, value, _ := strings.Cut(pair[1], ": ")
			d.Header.Add(name, value)
		case "-d":
			d.Body = []byte(strings.ReplaceAll(pair[1], "\n", "")) // curl does the same
		default:
			t.Fatalf("cannot parse the option %q", pair)
		}
	}
	return d
}

// The examples of the page get the responses that it shows, with the configuration that it shows.
func TestAPISourcePage_examples_matchResponses(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/how-to/push-your-own-events.md")
	testkit.Must(t, err)
	blocks := codeBlock.FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 11 || blocks[0][1] != "yaml" {
		t.Fatalf("%d code blocks", len(blocks))
	}
	env := map[string]string{"SHOP_TOKEN": apiToken}
	c, err := config.Parse([]byte("database: {url: postgres://postern@localhost/postern}\n"+blocks[0][2]),
		func(name string) string { return env[name] })
	testkit.Must(t, err)
	shop := c.Endpoints()[0]
	if !shop.RequireCommit {
		t.Error("the source may use the spool")
	}
	b := setupOn(t, testkit.Database(t), func(o *ingest.Options) {
		changeEndpoint(o, "api", func(ep *ingest.Endpoint) { ep.Provider, ep.Config = shop.Provider, shop.Source })
	})
	for i := 1; i < len(blocks); i += 2 {
		if blocks[i][1] != "sh" || blocks[i+1][1] != "json" {
			t.Fatalf("block %d is %s, followed by %s", i, blocks[i][1], blocks[i+1][1])
		}
		a := b.post(t, "api", curlRequest(t, blocks[i][2]))
		got := variableField.ReplaceAllStringFunc(string(a.body), func(found string) string {
			if strings.HasPrefix(found, `"id"`) {
				return `"id":"ID"`
			}
			return `"received_at":"TIME"`
		})
		if got != blocks[i+1][2] {
			t.Errorf("%s\ngot %d\n%s\nthe page shows\n%s", blocks[i][2], a.status, got, blocks[i+1][2])
		}
	}
	b.wantEvents(t, 4)
	for want, count := range map[string]int{"order 1001": 1, "order 1002": 1, "order 1003": 1, " ": 1} {
		b.wantRows(t, count, `events WHERE object_type || ' ' || object_id = $1`, want)
	}
}
