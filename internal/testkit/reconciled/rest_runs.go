package reconciled

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// ChangeAndDeliverHalf creates, changes and deletes things, and delivers half of the webhooks.
func ChangeAndDeliverHalf(t *testing.T, b *RESTEnv, seed uint64, changes int) {
	t.Helper()
	r, from := rand.New(rand.NewPCG(seed, 61)), len(b.Fake.Events())
	for range changes {
		name := fmt.Sprint("name ", r.IntN(1000))
		if r.IntN(6) == 0 {
			name = ""
		}
		b.Fake.Set(fmt.Sprintf("t%02d", r.IntN(40)), name, time.Duration(500+r.IntN(3000))*time.Millisecond)
	}
	var kept [][]byte
	for _, body := range b.Fake.Events()[from:] {
		if r.IntN(2) == 0 {
			kept = append(kept, body)
		}
	}
	r.Shuffle(len(kept), func(i, k int) { kept[i], kept[k] = kept[k], kept[i] })
	b.Deliver(t, kept)
	b.Fake.Advance(time.Minute)
	if len(b.ThingDifferences(t)) == 0 {
		t.Fatal("there are no differences: the test is too easy")
	}
}

// Pagings are edits of the example configuration with another paging.
var Pagings = map[string][]string{
	"field": nil,
	"address": {"/lists/field", "/lists/url", `after: "{cursor}", `, "", "next: {field: meta.next}",
		"next: {address: meta.next}"},
	"link": {"/lists/field", "/lists/link", `after: "{cursor}", `, "", "next: {field: meta.next}",
		"next: {link: true}"},
	"last": {"/lists/field", "/lists/last", "next: {field: meta.next}", "next: {last: key, more: more}"},
	"window": {"/lists/field", "/lists/window", `after: "{cursor}", `, "", "next: {field: meta.next}",
		"next: {window: true}"},
	"page": {"/lists/field", "/lists/page", `after: "{cursor}", `, `page: "{cursor}", `},
	"whole": {"/lists/field", "/lists/whole",
		`query: {limit: "{limit}", after: "{cursor}", since: "{since}", until: "{until}"}`, "",
		"            items: items", "", "next: {field: meta.next}", "partial: true"},
}
