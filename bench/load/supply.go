// Package load drives a server with deliveries that were signed beforehand and measures how it
// answers.
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
	// Duplicates is the share of deliveries that are sent again later, 0 to 1; 1: all are one and
	// the same.
	Duplicates float64
	// Sources are the names in the path, in turn.
	Sources []string
	// Objects is how many objects the deliveries are about, chosen at random, 0: each is about one
	// of its own. Each event of an object is a second later than the one before.
	Objects int
	// Blocks, if not 0, divides deliveries and objects into as many equal parts, each part of the
	// deliveries about its own part of the objects, so that whoever reads one part meets the same
	// load as whoever reads all. Each object has as many events as any other, and they lie apart: a
	// part goes through all its objects before it comes to one again, each time in another order.
	Blocks int
	Secret []byte
	// Spread is the time over which they will be sent: each is signed for its moment. 0: all for
	// one.
	Spread time.Duration
	// Ahead is how far in the future the first is signed for. Half of the time that a long closed
	// loop takes keeps all within the senders' tolerance, which goes both ways, at any rate.
	Ahead time.Duration
}

// Deliveries are ready to be sent. Only what differs is kept for each, in a few bytes, so that
// millions fit and the collector has nothing to look at; what they share is put around it while
// sending.
type Deliveries struct {
	run     string
	now     time.Time
	sources []string
	ends    [][]byte
	all     []delivery
	updates []int32
}

// delivery is what tells one from another.
type delivery struct {
	event, object, update int32
	source                uint16
	end                   uint16
	// stamp is the signed time in Unix seconds, mac the signature.
	stamp int64
	mac   [sha256.Size]byte
}

// ends is how many different ends of bodies there are.
const ends = 64

// Len is how many deliveries there are.
func (d *Deliveries) Len() int { return len(d.all) }

// Objects tells of each object how many different events there are about it; the last one's balance
// is that number.
func (d *Deliveries) Objects() map[string]int {
	out := make(map[string]int, len(d.updates))
	for i, n := range d.updates {
		if n > 0 {
			out[d.object(int32(i))] = int(n)
		}
	}
	return out
}

func (d *Deliveries) object(n int32) string { return fmt.Sprintf("cus_%s%07d", d.run, n) }

// Make signs all deliveries of a supply.
func Make(s Supply) *Deliveries {
	objects := s.Objects
	if objects == 0 {
		objects = s.Count
	}
	var order []int32
	if s.Blocks > 0 {
		order = inBlocks(s.Count, objects, s.Blocks)
	}
	d := &Deliveries{run: s.Run, now: time.Now(), sources: s.Sources, ends: Ends(s.BodySize),
		all: make([]delivery, s.Count), updates: make([]int32, objects)}
	rng := rand.New(rand.NewPCG(20261121, 6))
	for i := range d.all {
		if i > 0 && rng.Float64() < s.Duplicates {
			again := max(0, i-1-rng.IntN(1000))
			if s.Duplicates == 1 {
				again = 0
			}
			d.all[i] = d.all[again] // which may be one that is sent again itself
			continue
		}
		object := int32(i)
		switch {
		case order != nil:
			object = order[i]
		case s.Objects > 0:
			object = int32(rng.IntN(objects))
		}
		d.updates[object]++
		d.all[i] = delivery{event: int32(i), object: object, update: d.updates[object],
			source: uint16(i % len(s.Sources)), end: uint16(i % ends)}
	}
	d.sign(s)
	return d
}

func (d *Deliveries) sign(s Supply) {
	var wg sync.WaitGroup
	const workers = 2
	for w := range workers {
		wg.Go(func() {
			mac, buf := hmac.New(sha256.New, s.Secret), make([]byte, 0, 1024)
			for i := w; i < len(d.all); i += workers {
				one := &d.all[i]
				one.stamp = d.now.Add(s.Ahead + time.Duration(float64(s.Spread)*float64(i)/float64(s.Count))).Unix()
				mac.Reset()
				buf = append(strconv.AppendInt(buf[:0], one.stamp, 10), '.')
				mac.Write(d.front(buf, one))
				mac.Write(d.ends[one.end])
				mac.Sum(one.mac[:0])
			}
		})
	}
	wg.Wait()
}

// Request is the i-th delivery as it is sent.
func (d *Deliveries) Request(i int) []byte { return d.put(nil, i) }

// front appends the beginning of a body: all that tells events apart.
func (d *Deliveries) front(b []byte, one *delivery) []byte {
	b = append(append(b, `{"id":"evt_`...), d.run...)
	b = append(digits(b, one.event, 9), `","object":"event","api_version":"2026-09-30.basil","created":`...)
	b = strconv.AppendInt(b, d.now.Unix()-100_000+int64(one.update), 10)
	b = append(b, `,"type":"customer.updated","data":{"previous_attributes":{"balance":`...)
	b = strconv.AppendInt(b, int64(one.update-1), 10)
	b = append(append(b, `},"object":{"id":"cus_`...), d.run...)
	b = append(digits(b, one.object, 7), `","object":"customer","balance":`...)
	return append(strconv.AppendInt(b, int64(one.update), 10), ',')
}

// digits appends a number with zeros before it.
func digits(b []byte, n int32, width int) []byte {
	var text [10]byte
	out := strconv.AppendInt(text[:0], int64(n), 10)
	for range width - len(out) {
		b = append(b, '0')
	}
	return append(b, out...)
}

// put writes the i-th request into a buffer.
func (d *Deliveries) put(b []byte, i int) []byte {
	one := &d.all[i]
	var text [512]byte
	front, end := d.front(text[:0], one), d.ends[one.end]
	b = append(append(b, "POST /webhooks/"...), d.sources[one.source]...)
	b = append(b, " HTTP/1.1\r\nHost: hooks.example\r\nUser-Agent: Stripe/1.0 (+https://stripe.com/docs/webhooks)\r\n"+
		"Content-Type: application/json; charset=utf-8\r\nAccept: */*\r\nStripe-Signature: t="...)
	b = append(strconv.AppendInt(b, one.stamp, 10), ",v1="...)
	b = append(hex.AppendEncode(b, one.mac[:]), "\r\nContent-Length: "...)
	b = append(strconv.AppendInt(b, int64(len(front)+len(end)), 10), "\r\n\r\n"...)
	return append(append(b, front...), end...)
}

// Ends are the ends that bodies of a size share: members as Stripe's customers have them, and
// metadata of hardly compressible text.
func Ends(size int) [][]byte {
	rng, out := rand.New(rand.NewPCG(20261121, 5)), make([][]byte, ends)
	for i := range out {
		out[i] = end(rng, size)
	}
	return out
}

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
