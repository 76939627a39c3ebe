// Package load drives a server with deliveries that were signed beforehand and measures how it answers.
package load

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Supply says what deliveries to make. All are Stripe's customer.updated.
type Supply struct {
	// Run makes the ids of one supply differ from all others'.
	Run string
	// Count is how many deliveries there are; BodySize is their size in bytes, about.
	Count, BodySize int
	// Duplicates is the share of deliveries that are sent again later, 0 to 1; 1: all are one and the same.
	Duplicates float64
	// Sources are the names in the path, in turn.
	Sources []string
	// Objects is how many objects the deliveries are about, chosen at random; each event of one is a second later than the one before.
	Objects int
	Secret  []byte
	// Spread is the time over which they will be sent: each is signed for its moment. 0: all for now.
	Spread time.Duration
}

// Deliveries are ready to be sent. Only what differs is kept for each: the end of the body is shared by many.
type Deliveries struct {
	fronts [][]byte
	ends   [][]byte
	// end says which end a delivery has.
	end []uint8
}

// ends is how many different ends of bodies there are.
const ends = 64

// Len is how many deliveries there are.
func (d *Deliveries) Len() int { return len(d.fronts) }

// put writes the i-th request into a buffer.
func (d *Deliveries) put(buf []byte, i int) []byte {
	return append(append(buf, d.fronts[i]...), d.ends[d.end[i]]...)
}

// Make signs all deliveries of a supply.
func Make(s Supply) *Deliveries {
	d := &Deliveries{fronts: make([][]byte, s.Count), ends: make([][]byte, ends), end: make([]uint8, s.Count)}
	rng := rand.New(rand.NewPCG(20261121, 5))
	for i := range d.ends {
		d.ends[i] = end(rng, s.BodySize)
	}
	now := time.Now()
	bodies := make([]string, s.Count)
	again := make([]int, s.Count) // the delivery that is sent once more in this place, or itself
	updates := make(map[int]int, s.Objects)
	for i := range s.Count {
		again[i] = i
		if i > 0 && rng.Float64() < s.Duplicates {
			again[i] = again[max(0, i-1-rng.IntN(1000))]
			if s.Duplicates == 1 {
				again[i] = 0
			}
			continue
		}
		object := rng.IntN(max(s.Objects, 1))
		updates[object]++
		bodies[i] = front(s.Run, i, object, updates[object], now)
	}
	var wg sync.WaitGroup
	const workers = 2
	for w := range workers {
		wg.Go(func() {
			for i := w; i < s.Count; i += workers {
				of := again[i]
				at := now.Add(time.Duration(float64(s.Spread) * float64(i) / float64(s.Count)))
				d.end[i] = uint8(of % ends)
				d.fronts[i] = sign(s.Sources[of%len(s.Sources)], bodies[of], d.ends[d.end[i]], s.Secret, at)
			}
		})
	}
	wg.Wait()
	return d
}

// front is the beginning of a body: all that tells events apart.
func front(run string, event, object, update int, now time.Time) string {
	return fmt.Sprintf(`{"id":"evt_%s%09d","object":"event","api_version":"2026-09-30.basil","created":%d,"type":"customer.updated",`+
		`"data":{"previous_attributes":{"balance":%d},"object":{"id":"cus_%s%07d","object":"customer","balance":%d,`,
		run, event, now.Unix()-100_000+int64(update), update-1, run, object, update)
}

// end is the rest of a body: members as Stripe's customers have them, and metadata of hardly compressible text up to the size.
func end(rng *rand.Rand, size int) []byte {
	var b strings.Builder
	b.WriteString(`"created":1783168215,"currency":"usd","default_source":null,"delinquent":false,"description":null,"discount":null,` +
		`"email":"ada@example.com","invoice_prefix":"0A1B2C3D","livemode":false,"name":"Ada Example","metadata":{`)
	const tail = `},"shipping":null,"tax_exempt":"none"}},"livemode":false,"pending_webhooks":1,"request":{"id":"req_1","idempotency_key":null}}`
	const before = 200 // what front and the headers' part of the size take, about
	for i := 0; b.Len()+len(tail)+before < size; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"key_%02d":"%s"`, i, text(rng, 40))
	}
	b.WriteString(tail)
	return []byte(b.String())
}

func text(rng *rand.Rand, n int) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	out := make([]byte, n)
	for i := range out {
		out[i] = letters[rng.IntN(len(letters))]
	}
	return string(out)
}

// sign is a request up to the shared end of its body.
func sign(source, front string, end, secret []byte, at time.Time) []byte {
	stamp := strconv.FormatInt(at.Unix(), 10)
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(stamp + "." + front))
	mac.Write(end)
	return fmt.Appendf(nil, "POST /webhooks/%s HTTP/1.1\r\nHost: hooks.example\r\nUser-Agent: Stripe/1.0 (+https://stripe.com/docs/webhooks)\r\n"+
		"Content-Type: application/json; charset=utf-8\r\nAccept: */*\r\nStripe-Signature: t=%s,v1=%s\r\nContent-Length: %d\r\n\r\n%s",
		source, stamp, hex.EncodeToString(mac.Sum(nil)), len(front)+len(end), front)
}
