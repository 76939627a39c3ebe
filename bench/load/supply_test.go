package load_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/bench/load"
	"github.com/postern-gateway/postern/bench/reference/refer"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

const secret = "whsec_of_the_test"

// requests returns all deliveries of a supply as a server reads them.
func requests(t *testing.T, d *load.Deliveries) (bodies [][]byte, headers []http.Header) {
	t.Helper()
	for i := range d.Len() {
		req, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(d.Request(i))))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Fatal(err)
		}
		bodies, headers = append(bodies, body), append(headers, req.Header)
	}
	return bodies, headers
}

// The product verifies and identifies each delivery as Stripe's. The references verify it too.
func TestMake_anySupply_productAndReferencesVerify(t *testing.T) {
	t.Parallel()
	for _, s := range []load.Supply{{Spread: 4 * time.Minute}, {Ahead: 150 * time.Second}, {BodySize: 20_000}, {}} {
		s.Run, s.Count, s.Objects, s.Sources, s.Secret = "00007", 50, 7, []string{"a", "b"}, []byte(secret)
		s.BodySize = max(s.BodySize, 2400)
		bodies, headers := requests(t, load.Make(s))
		src := &provider.Source{Name: "a", Secrets: []provider.Secret{{Name: "bench", Value: []byte(secret)}}}
		for i, body := range bodies {
			at := time.Now().Add(s.Spread * time.Duration(i) / time.Duration(s.Count))
			d := &provider.Delivery{Header: headers[i], Body: body, ReceivedAt: at}
			if _, err := (stripe.Stripe{}).Verify(src, d); err != nil {
				t.Fatalf("delivery %d: %v", i, err)
			}
			evs, err := stripe.Stripe{}.Identify(src, d)
			if err != nil || len(evs) != 1 || evs[0].ContentKey || evs[0].Type != "customer.updated" ||
				evs[0].ObjectID == "" {
				t.Fatalf("delivery %d: %+v, %v", i, evs, err)
			}
			if !refer.Verified(headers[i].Get("Stripe-Signature"), []byte(secret), body, at) {
				t.Fatalf("delivery %d is not verified by the references", i)
			}
			if off := len(body) - s.BodySize; off < -100 || off > 200 {
				t.Fatalf("delivery %d has %d bytes, not about %d", i, len(body), s.BodySize)
			}
		}
	}
}

// A repeated delivery has the same body, and the share of repeated ones is as requested.
func TestMake_duplicates_repeatBodies(t *testing.T) {
	t.Parallel()
	for share, least := range map[float64]int{0: 0, 0.05: 100, 1: 3999} {
		d := load.Make(load.Supply{Run: "dup", Count: 4000, BodySize: 1000, Duplicates: share,
			Sources: []string{"a", "b", "c"}, Objects: 100, Secret: []byte(secret)})
		byID, again := map[string]string{}, 0
		bodies, _ := requests(t, d)
		for _, body := range bodies {
			id := read(t, body).ID
			if before, ok := byID[id]; ok {
				if again++; before != string(body) {
					t.Fatalf("event %s comes with two bodies", id)
				}
			}
			byID[id] = string(body)
		}
		if most := 3 * least; again < least || again > most {
			t.Errorf("share %g: %d of 4000 are repeated", share, again)
		}
	}
}

type event struct {
	ID      string
	Created int64
	Data    struct {
		Object struct {
			ID      string
			Balance int
		}
	}
}

func read(t *testing.T, body []byte) (e event) {
	t.Helper()
	if err := json.Unmarshal(body, &e); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestMake_noObjectCount_oneObjectPerEvent(t *testing.T) {
	t.Parallel()
	d := load.Make(load.Supply{Run: "own", Count: 100, BodySize: 500, Sources: []string{"a"}, Secret: []byte(secret)})
	if n := len(d.Objects()); n != 100 {
		t.Errorf("%d objects of 100 events", n)
	}
}

// Each event of an object is later than the one before, and Objects returns the balance of the
// last.
func TestDeliveriesObjects_returnsLastBalance(t *testing.T) {
	t.Parallel()
	d := load.Make(load.Supply{Run: "obj", Count: 3000, BodySize: 500, Duplicates: 0.1, Sources: []string{"a"},
		Objects: 300, Secret: []byte(secret)})
	bodies, _ := requests(t, d)
	last, at := map[string]int{}, map[string]int64{}
	for _, body := range bodies {
		e := read(t, body)
		if object := e.Data.Object; object.Balance > last[object.ID] {
			if e.Created <= at[object.ID] {
				t.Fatalf("%s is no later than the event before", e.ID)
			}
			last[object.ID], at[object.ID] = object.Balance, e.Created
		}
	}
	want := d.Objects()
	if len(want) != len(last) {
		t.Fatalf("Objects has %d objects, the deliveries have %d", len(want), len(last))
	}
	for id, balance := range want {
		if last[id] != balance {
			t.Fatalf("%s ends with balance %d, Objects says %d", id, last[id], balance)
		}
	}
}
