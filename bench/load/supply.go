// Package load starts the measured programs, PostgreSQL and NATS, each as its own process, and
// sends them deliveries that were signed beforehand. It measures the responses, reads how much
// processor time, memory and write-ahead log the programs use, and takes profiles.
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

// Supply describes the deliveries to make. All are Stripe's customer.updated.
type Supply struct {
	// Run is part of every id, so that no two supplies share an id.
	Run string
	// Count is the number of deliveries. BodySize is the approximate size of each in bytes.
	Count, BodySize int
	// Duplicates is the share of deliveries, 0 to 1, that repeat an earlier one. With 1 all are the
	// same delivery.
	Duplicates float64
	// Sources are the source names in the path. The deliveries use them in turn.
	Sources []string
	// Objects is the number of objects, of which each delivery gets a random one. With 0 each
	// delivery has its own object. The events of an object are a second apart.
	Objects int
	// Blocks, if not 0, divides deliveries and objects into that many equal parts. Each part of the
	// deliveries is about its own part of the objects, so that a reader of one part has the same
	// load as a reader of all. Each object has as many events as any other. A part uses all its
	// objects, in random order, before it uses one again.
	Blocks int
	Secret []byte
	// Spread is the time in which the deliveries will be sent. Each is signed for its moment. With
	// 0 all are signed for the same moment.
	Spread time.Duration
	// Ahead is how far in the future the first delivery is signed for. For a closed loop, half of
	// its duration keeps all timestamps within the verifier's tolerance, which applies to past and
	// future.
	Ahead time.Duration
}

// Deliveries are ready to be sent. Each stores only the few bytes in which it differs, so that
// millions fit into memory and the garbage collector has no pointers to follow. The common parts
// are added while sending.
type Deliveries struct {
	run     string
	now     time.Time
	sources []string
	ends    [][]byte
	all     []delivery
	updates []int32
}

// delivery has the parts in which deliveries differ.
type delivery struct {
	event, object, update int32
	source                uint16
	end                   uint16
	// stamp is the signed time in Unix seconds. mac is the signature.
	stamp int64
	mac   [sha256.Size]byte
}

// ends is the number of different body ends.
const ends = 64

// Len returns the number of deliveries.
func (d *Deliveries) Len() int { return len(d.all) }

// Objects returns the number of different events of each object. The balance in the last one is
// that number.
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
			d.all[i] = d.all[again] // which may itself be a repeated one
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

// Request returns the i-th delivery as it is sent.
func (d *Deliveries) Request(i int) []byte { return d.put(nil, i) }

// front appends the beginning of a body, which has everything in which events differ.
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

// Ends returns the body ends for bodies of a size: members as Stripe's customers have them, and
// metadata of text that hardly compresses.
func Ends(size int) [][]byte {
	rng, out := rand.New(rand.NewPCG(20261121, 5)), make([][]byte, ends)
	for i := range out {
		out[i] = end(rng, size)
	}
	return out
}

func end(rng *rand.Rand, size int) []byte {
	var b strings.Builder
	b.WriteString(`"created":1783168215,"currency":"usd","default_source":null,"delinquent":false,` +
		`"description":null,"discount":null,` +
		`"email":"ada@example.com","invoice_prefix":"0A1B2C3D","livemode":false,"name":"Ada Example","metadata":{`)
	const tail = `},"shipping":null,"tax_exempt":"none"}},"livemode":false,"pending_webhooks":1,` +
		`"request":{"id":"req_1","idempotency_key":null}}`
	const before = 200 // about the size of front and of the headers
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
