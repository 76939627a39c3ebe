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

// pushed is a request of the user's own service, by its body and headers, "name: value" each.
func pushed(body string, headers ...string) *provider.Delivery {
	d := &provider.Delivery{Header: http.Header{"Authorization": {"Bearer " + apiToken}}, Body: []byte(body)}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		d.Header.Set(name, value)
	}
	return d
}

// event is a CloudEvent in the JSON format.
func event(id, data string) string {
	return `{"specversion":"1.0","id":"` + id + `","source":"/s","type":"com.example.order.updated","subject":"o1","data":` + data + `}`
}

const (
	ofOne  = "Content-Type: application/cloudevents+json"
	ofMany = "Content-Type: application/cloudevents-batch+json"
	ofJSON = "Content-Type: application/json"
)

// receipts are those of an answer that is a list.
func (a answer) receipts(t testing.TB) (all []receipt) {
	t.Helper()
	if err := json.Unmarshal(a.body, &all); err != nil || a.status != 200 {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	return all
}

// keeps fails unless the log has so many events, and no conflict.
func (b *testBundle) keeps(t *testing.T, events int) {
	t.Helper()
	if n, keys, conflicts := b.count(t, `SELECT count(*) FROM events`), b.count(t, `SELECT count(*) FROM event_keys`), b.count(t, `SELECT count(*) FROM event_conflicts`); n != events || keys != events || conflicts != 0 {
		t.Errorf("%d events, %d keys and %d conflicts, want %d and no conflict", n, keys, conflicts, events)
	}
}

// In each mode: the same again is answered the same receipt, and the same key with other content is refused and changes nothing.
func TestDirectKeys(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for name, c := range map[string]struct{ first, again, other *provider.Delivery }{
		"structured": {pushed(event("a", `{"version":1}`), ofOne), pushed(" "+event("a", `{"version": 1.0}`), ofOne), pushed(event("a", `{"version":2}`), ofOne)},
		"binary": {pushed(`{"version":1}`, ofJSON, "ce-specversion: 1.0", "ce-id: b", "ce-source: /s", "ce-type: t"),
			pushed(`{"specversion":"1.0","id":"b","source":"/s","type":"t","datacontenttype":"application/json","data":{"version":1}}`, ofOne),
			pushed(`{"version":1}`, ofJSON, "ce-specversion: 1.0", "ce-id: b", "ce-source: /s", "ce-type: other")},
		"JSON": {pushed(`{"type":"t"}`, ofJSON, `Idempotency-Key: "c"`), pushed(`{"type":"t"}`, ofJSON, `Idempotency-Key: c`), pushed(`{"type":"u"}`, ofJSON, `Idempotency-Key: "c"`)},
	} {
		first, again := b.post(t, "api", c.first), b.post(t, "api", c.again)
		if r := first.receipt(t); r.Duplicate || r.ID == "" {
			t.Errorf("%s: %s", name, first.body)
		}
		if want := strings.Replace(string(first.body), `"duplicate":false`, `"duplicate":true`, 1); string(again.body) != want || again.status != first.status {
			t.Errorf("%s: %d %s, want %s", name, again.status, again.body, want)
		}
		other := b.post(t, "api", c.other)
		other.refused(t, 422, "key-reused")
		if key := first.receipt(t).EventID; !strings.Contains(string(other.body), key) {
			t.Errorf("%s: %s does not name %q", name, other.body, key)
		}
		if r := b.post(t, "api", c.first).receipt(t); !r.Duplicate || r.ID != first.receipt(t).ID {
			t.Errorf("%s: after the refusal %+v", name, r)
		}
	}
	b.post(t, "api", pushed(`{"type":"t"}`, ofJSON, `Idempotency-Key: "/s a"`)).refused(t, 422, "key-reused") // one space of names
	b.keeps(t, 3)
	b.publishes(t, 3)
	b.wantCounter(t, 4, "postern_deliveries_total", "source=api", "result=conflict")
}

// An own service that cannot be stored is told why; a client without a token is asked for one. The log has a line
// for each refusal of a verified delivery, and one for all that are not verified.
func TestDirectRefusals(t *testing.T) {
	t.Parallel()
	log, tune := logging(slog.LevelInfo)
	b := setup(t, tune)
	b.post(t, "api", pushed(event("1", "1"), ofOne)).receipt(t)
	release := b.hold(t)
	under := b.send(t, t.Context(), "api", pushed(event("2", "2"), ofOne))
	b.blocked(t, 1)
	for range 2 {
		b.post(t, "api", pushed(event("2", "2"), ofOne)).refused(t, 409, "in-flight")
	}
	release()
	(<-under).receipt(t)
	long := "Content-Type: text/" + strings.Repeat("k", 3000)
	for _, token := range []string{"Bearer wrong", "Basic x"} {
		b.post(t, "api", pushed("["+event("new", "1")+","+event("1", "0")+"]", ofMany)).refused(t, 422, "key-reused")
		b.post(t, "api", pushed(`{}`, ofJSON)).refused(t, 400, "invalid")
		b.post(t, "api", pushed(`a=1`, long, "Idempotency-Key: a")).refused(t, 415, "invalid")
		b.post(t, "api", pushed(`[`+strings.Repeat("1,", 1000)+`1]`, ofMany)).refused(t, 413, "invalid")
		a := b.post(t, "api", pushed(`{}`, ofJSON, "Authorization: "+token))
		a.refused(t, 401, "unauthenticated")
		if got := a.header.Get("WWW-Authenticate"); got != "Bearer" {
			t.Errorf("WWW-Authenticate %q", got)
		}
	}
	if a := b.post(t, "stripe", pushed(`{}`)); a.header.Get("WWW-Authenticate") != "" {
		t.Error("a provider's webhook is asked for a token")
	}
	b.keeps(t, 2)
	b.waitRows(t, 2, `rejections WHERE source = $1`, b.endpoints["api"].Number)
	for _, table := range []string{"events", "rejections"} {
		b.wantRows(t, 0, table+` x WHERE x::text ILIKE '%bearer wrong%' OR x::text LIKE '%`+apiToken+`%'
			OR headers ? 'Authorization'`)
	}
	b.wantRows(t, 2, `events WHERE verification->>'secret' = 'main' AND verification->>'scheme' = 'bearer'`)
	lines := map[string]int{}
	for _, l := range log.take(t, "delivery") {
		detail := fmt.Sprint(l["detail"])
		if len(detail) > 1000 {
			t.Errorf("%d bytes of detail", len(detail))
		}
		lines[fmt.Sprintf("%v %v %v %.27s", l["result"], l["status"], l["event_id"], detail)]++
	}
	want := map[string]int{
		"in_flight 409 /s 2 A delivery with this key is":  2,
		"conflict 422 /s new Stored before with other co": 2,
		"invalid 400 <nil> the header Idempotency-Key ":   2,
		"rejected 401 <nil> <nil>":                        3, // one for each source and reason
		"accepted 200 /s 1 <nil>":                         1,
		"accepted 200 /s 2 <nil>":                         1,
	}
	others := 0 // 413 and 415
	for l, n := range lines {
		if _, known := want[l]; !known && strings.HasPrefix(l, "invalid 41") && n == 2 {
			others++
			delete(lines, l)
		}
	}
	if diff := cmp.Diff(want, lines); diff != "" || others != 2 {
		t.Errorf("%d other refusals; lines of the log (-want +got):\n%s", others, diff)
	}
}

// Of a batch all are stored or none, and each is told of.
func TestDirectBatch(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	one, two, three, four := event("1", "1"), event("2", "2"), event("3", "3"), event("4", "4")
	first := b.post(t, "api", pushed("["+one+","+two+"]", ofMany)).receipts(t)
	if len(first) != 2 || first[0].EventID != "/s 1" || first[1].EventID != "/s 2" || first[0].Duplicate || first[1].Duplicate {
		t.Errorf("receipts %+v", first)
	}
	again := b.post(t, "api", pushed("["+three+","+one+","+three+"]", ofMany)).receipts(t)
	if len(again) != 3 || again[0].Duplicate || !again[1].Duplicate || again[1].ID != first[0].ID || !again[2].Duplicate || again[2].ID != again[0].ID {
		t.Errorf("receipts %+v", again)
	}
	if r := b.post(t, "api", pushed("["+two+"]", ofMany)).receipts(t); len(r) != 1 || !r[0].Duplicate || r[0].ID != first[1].ID {
		t.Errorf("receipts of a batch of one: %+v", r)
	}
	b.keeps(t, 3)
	for name, batch := range map[string]string{
		"one of three differs": "[" + four + "," + event("2", "0") + "," + event("5", "5") + "]",
		"two of one key":       "[" + four + "," + event("6", "6") + "," + event("6", "7") + "]",
		"the only one":         "[" + event("1", "0") + "]",
	} {
		a := b.post(t, "api", pushed(batch, ofMany))
		a.refused(t, 422, "key-reused")
		if strings.Contains(string(a.body), "/s 4") || strings.Contains(string(a.body), "/s 5") {
			t.Errorf("%s: named what is new: %s", name, a.body)
		}
	}
	if a := b.post(t, "api", pushed("[]", ofMany)); a.status != 200 || strings.TrimSpace(string(a.body)) != "[]" {
		t.Errorf("an empty batch: %d %s", a.status, a.body)
	}
	b.keeps(t, 3)
	b.publishes(t, 3)
	if r := b.post(t, "api", pushed("["+four+"]", ofMany)).receipts(t); r[0].Duplicate {
		t.Error("what was refused took a key")
	}
}

// What is on its way is told so, also where it is one of many, and is free again once that is decided.
func TestDirectInFlight(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	release := b.hold(t)
	first := b.send(t, t.Context(), "api", pushed(event("1", "1"), ofOne))
	b.blocked(t, 1)
	for _, d := range []*provider.Delivery{pushed(event("1", "1"), ofOne), pushed(event("1", "0"), ofOne), pushed("["+event("2", "2")+","+event("1", "1")+"]", ofMany)} {
		b.post(t, "api", d).refused(t, 409, "in-flight")
	}
	other := b.send(t, t.Context(), "api", pushed(event("2", "2"), ofOne)) // the refused batch has left no mark
	release()
	r := (<-first).receipt(t)
	if r.Duplicate || (<-other).receipt(t).Duplicate {
		t.Error("what came first is a duplicate")
	}
	if again := b.post(t, "api", pushed(event("1", "1"), ofOne)).receipt(t); !again.Duplicate || again.ID != r.ID {
		t.Errorf("again: %+v, first %+v", again, r)
	}
	b.keeps(t, 2)
}

// A commit whose answer nobody has heard: whoever sends again, here or to another gateway, gets its receipt, and there is one event.
func TestDirectAnswerLost(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	proxy, tune := through(t, db)
	b := setupOn(t, db, func(o *ingest.Options) {
		tune(o)
		o.Settings.Deadline, o.Settings.StallAfter = 2*time.Second, time.Second
	})
	b.taken(t, pushed(event("0", "0"), ofOne)) // its statement is prepared
	t.Cleanup(proxy.Restore)
	proxy.StallAnswers()
	batch := pushed("["+event("1", "1")+","+event("2", "2")+"]", ofMany)
	single := pushed(event("3", "3"), ofOne)
	b.post(t, "api", single).refused(t, 503, "unavailable")
	b.waitRows(t, 2, `events`)
	other := setupOn(t, db, nil) // as the gateway after a crash, or beside it
	if r := other.post(t, "api", single).receipt(t); !r.Duplicate {
		t.Errorf("receipt %+v", r)
	}
	if r := other.post(t, "api", batch).receipts(t); r[0].Duplicate || r[1].Duplicate {
		t.Errorf("receipts %+v", r)
	}
	proxy.Restore()
	if r := b.taken(t, single); !r.Duplicate {
		t.Errorf("receipt %+v", r)
	}
	b.keeps(t, 4)
}

// taken sends until a receipt comes.
func (b *testBundle) taken(t *testing.T, d *provider.Delivery) receipt {
	t.Helper()
	return b.waitAnswer(t, "api", d, http.StatusOK).receipt(t)
}

// While the store is away nothing is acknowledged, unless the source says so; what is then, and conflicts, is kept like any sender's.
func TestDirectWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	strict := setupSpool(t, nil)
	strict.store.Cut()
	strict.post(t, "api", pushed(event("1", "1"), ofOne)).refused(t, 503, "unavailable")
	b := setupSpool(t, func(o *ingest.Options) {
		loose := o.Endpoints["api"]
		loose.FinalReceipts = false
		o.Endpoints["api"] = loose
	})
	b.post(t, "api", pushed(event("1", "1"), ofOne)).receipt(t)
	b.store.Cut()
	b.post(t, "api", pushed(event("1", "0"), ofOne)).kept(t, "/s 1")
	if a := b.post(t, "api", pushed("["+event("2", "2")+"]", ofMany)); a.status != 200 || !strings.HasPrefix(string(a.body), `[{"event_id":"/s 2","spooled":true}`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	b.store.Restore()
	b.waitEmpty(t, 2)
	b.wantRows(t, 1, `event_conflicts`)
}

// An event of a batch is stored, published and read as if it had come alone: who forgets one forgets no other.
func TestDirectBatchIsStoredApart(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	one, two := event("1", `{"version": 1}`), event("2", `{"version": 2}`)
	receipts := b.post(t, "api", pushed("["+one+" ,\n"+two+"]", ofMany)).receipts(t)
	for i, want := range []string{one, two} {
		b.wantRows(t, 1, `events WHERE id = $1::bigint AND body = $2 AND delivery_id = id AND delivery_index = 0 AND headers->>'Content-Type' = 'application/cloudevents+json'`, receipts[i].ID, []byte(want))
	}
	b.publishes(t, 2)
	for range 2 {
		e := <-b.published
		ep := b.endpoints["api"]
		o, err := ep.Provider.Observe(ep.Config, &e.Stored)
		if err != nil || e.Key[3:] != fmt.Sprint(o.At) || e.BodyInLog || e.Index != 0 || string(e.Body) != map[string]string{"/s 1": one, "/s 2": two}[e.Key] {
			t.Errorf("published %+v, observed %+v, %v", e, o, err)
		}
	}
}

// The headers of a batch are kept with each of its events, so they are short; alone an event has them whole.
func TestDirectBatchMultipliesNoHeaders(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	agent := "User-Agent: " + strings.Repeat("a", 255) + strings.Repeat("é", 4000)
	b.post(t, "api", pushed("["+event("1", "1")+","+event("2", "2")+"]", ofMany, agent)).receipts(t)
	b.post(t, "api", pushed(event("3", "3"), ofOne, agent)).receipt(t)
	kept := b.db.Rows(t, `SELECT event_id || ' ' || octet_length(headers->>'User-Agent') || ' ' || (headers->>'Content-Type') FROM events ORDER BY event_id`)
	of := " application/cloudevents+json"
	if want := []string{"/s 1 258" + of, "/s 2 258" + of, "/s 3 8255" + of}; !slices.Equal(kept, want) { // the half of a letter is a replacement character
		t.Errorf("kept %q, want %q", kept, want)
	}
}

// A key whose append hangs is answered as any other is then, however often it comes, not that its receipt is near.
func TestDirectKeyThatHangs(t *testing.T) {
	t.Parallel()
	for name, final := range map[string]bool{"final": true, "spooled": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupSpool(t, func(o *ingest.Options) {
				ep := o.Endpoints["api"]
				ep.FinalReceipts = final
				o.Endpoints["api"] = ep
				o.Settings.Deadline = 2 * time.Second
			})
			b.post(t, "api", pushed(event("0", "0"), ofOne)).receipt(t)
			t.Cleanup(b.store.Restore)
			b.store.Stall()
			d := pushed(event("1", "1"), ofOne)
			for range 3 {
				if a := b.post(t, "api", d); final {
					a.refused(t, 503, "unavailable")
				} else {
					a.kept(t, "/s 1")
				}
			}
			b.store.Restore()
			b.taken(t, d)
			b.waitEmpty(t, 2)
			b.keeps(t, 2)
		})
	}
}

var (
	// block is a block of a page, by its language.
	block = regexp.MustCompile("(?s)```(yaml|sh|json)\n(.*?)```")
	// word is a word of a command as a shell reads it, as far as the page's need it.
	word = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)
	// varies is what differs between two runs of a command.
	varies = regexp.MustCompile(`"(id|received_at)":"[^"]*"`)
)

// command is the request that a command with curl makes.
func command(t *testing.T, text string) *provider.Delivery {
	t.Helper()
	words := word.FindAllString(strings.ReplaceAll(strings.ReplaceAll(text, "\\\n", " "), "$TOKEN", apiToken), -1)
	for i, w := range words {
		words[i] = strings.Trim(w[:1], `'"`) + w[1:len(w)-1] + strings.Trim(w[len(w)-1:], `'"`)
	}
	if len(words) < 2 || words[0] != "curl" || words[1] != "$URL" || len(words)%2 != 0 {
		t.Fatalf("not understood: %q", words)
	}
	d := &provider.Delivery{Header: http.Header{}}
	for pair := range slices.Chunk(words[2:], 2) {
		switch pair[0] {
		case "-H":
			name, value, _ := strings.Cut(pair[1], ": ")
			d.Header.Add(name, value)
		case "-d":
			d.Body = []byte(strings.ReplaceAll(pair[1], "\n", "")) // as curl does
		default:
			t.Fatalf("not understood: %q", pair)
		}
	}
	return d
}

// What the page says is answered is answered, by a source that is configured as it says.
func TestPageOfTheAPISource(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/api-source.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := block.FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 15 || blocks[0][1] != "yaml" {
		t.Fatalf("%d blocks", len(blocks))
	}
	env := map[string]string{"SHOP_TOKEN": apiToken}
	c, err := config.Parse([]byte("database: {url: postgres://postern@localhost/postern}\n"+blocks[0][2]), func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	shop := c.Endpoints()[0]
	if !shop.FinalReceipt {
		t.Error("the source may use the spool")
	}
	b := setupOn(t, testkit.Database(t), func(o *ingest.Options) {
		ep := o.Endpoints["api"]
		ep.Provider, ep.Config = shop.Provider, shop.Source
		o.Endpoints["api"] = ep
	})
	for i := 1; i < len(blocks); i += 2 {
		if blocks[i][1] != "sh" || blocks[i+1][1] != "json" {
			t.Fatalf("block %d is %s, and then %s", i, blocks[i][1], blocks[i+1][1])
		}
		a := b.post(t, "api", command(t, blocks[i][2]))
		got := varies.ReplaceAllStringFunc(string(a.body), func(found string) string {
			if strings.HasPrefix(found, `"id"`) {
				return `"id":"ID"`
			}
			return `"received_at":"TIME"`
		})
		if got != blocks[i+1][2] {
			t.Errorf("%s\nis answered %d\n%s\nand the page says\n%s", blocks[i][2], a.status, got, blocks[i+1][2])
		}
	}
	b.keeps(t, 4)
	for want, count := range map[string]int{"order 1001": 1, "order 1002": 1, "order 1003": 1, " ": 1} {
		b.wantRows(t, count, `events WHERE object_type || ' ' || object_id = $1`, want)
	}
}
