package suite

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// listPage is how many objects a page of Stripe's lists has at most.
	listPage = 100
	// listEnds is the number of different ends that the objects of a listing share.
	listEnds = 64
	// objectSize is the approximate size of an object in bytes.
	objectSize = 1000
)

// listing is a fake provider's API in the format of Stripe's, with customers that never change. It
// builds each page on request by copying, so that a million objects take no memory and little time.
// Under tenthPath the first tenth of them forms a second account.
type listing struct {
	server  *http.Server
	url     string
	objects int
	ends    []string
	// pages counts the requested pages. others counts all other calls.
	pages, others atomic.Int64
	serving       sync.WaitGroup
}

// tenthPath is the path prefix of the smaller account.
const tenthPath = "/tenth"

// newListing serves an account of that many objects until close.
func newListing(objects int) (*listing, error) {
	at, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &listing{objects: objects, url: "http://" + at.Addr().String()}
	rng := rand.New(rand.NewPCG(20261122, 7))
	for range listEnds {
		l.ends = append(l.ends, endOfObject(rng))
	}
	routes := http.NewServeMux()
	routes.HandleFunc("GET /v1/customers", func(w http.ResponseWriter, r *http.Request) { l.list(w, r, l.objects) })
	routes.HandleFunc("GET "+tenthPath+"/v1/customers",
		func(w http.ResponseWriter, r *http.Request) { l.list(w, r, l.objects/10) })
	routes.HandleFunc("GET /v1/customers/{id}", func(w http.ResponseWriter, r *http.Request) { l.one(w, r, l.objects) })
	routes.HandleFunc("GET "+tenthPath+"/v1/customers/{id}",
		func(w http.ResponseWriter, r *http.Request) { l.one(w, r, l.objects/10) })
	routes.HandleFunc("/", l.other)
	l.server = &http.Server{Handler: routes, ReadHeaderTimeout: time.Minute}
	l.serving.Go(func() { _ = l.server.Serve(at) }) // until close
	return l, nil
}

func (l *listing) close() error {
	err := l.server.Close()
	l.serving.Wait()
	return err
}

// address returns the base URL of the account, or of its tenth.
func (l *listing) address(tenth bool) string {
	if tenth {
		return l.url + tenthPath
	}
	return l.url
}

// endOfObject returns the members of a customer after its balance.
func endOfObject(rng *rand.Rand) string {
	var b strings.Builder
	b.WriteString(`,"created":1783168215,"currency":"usd","default_source":null,"delinquent":false,` +
		`"description":null,"discount":null,"email":"ada@example.com","invoice_prefix":"0A1B2C3D",` +
		`"invoice_settings":{"custom_fields":null,"default_payment_method":null,"footer":null,` +
		`"rendering_options":null},"livemode":true,"metadata":{`)
	const tail = `},"name":"Ada Example","next_invoice_sequence":1,"phone":null,` +
		`"preferred_locales":[],"shipping":null,"tax_exempt":"none","test_clock":null}`
	const front = 90 // about the size of what the method object writes first
	for i := 0; b.Len()+len(tail)+front < objectSize; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"key_%02d":"%016x%016x"`, i, rng.Uint64(), rng.Uint64())
	}
	b.WriteString(tail)
	return b.String()
}

// name returns the id of the n-th object, from 0 on, in the order of the list.
func (l *listing) name(n int) string { return fmt.Sprintf("cus_%012d", n) }

// object appends the n-th object.
func (l *listing) object(dst []byte, n int) []byte {
	dst = fmt.Appendf(dst, `{"id":"cus_%012d","object":"customer","address":null,"balance":%d`, n, n)
	return append(dst, l.ends[n%listEnds]...)
}

// list responds with a page of the first of objects.
func (l *listing) list(w http.ResponseWriter, r *http.Request, of int) {
	l.pages.Add(1)
	first := 0
	if after := r.URL.Query().Get("starting_after"); after != "" {
		n, err := strconv.Atoi(strings.TrimPrefix(after, "cus_"))
		if err != nil {
			http.Error(w, "no such object", http.StatusBadRequest)
			return
		}
		first = n + 1
	}
	last := min(first+listPage, of)
	page := make([]byte, 0, listPage*(objectSize+100))
	page = fmt.Appendf(page, `{"object":"list","url":"/v1/customers","has_more":%t,"data":[`, last < of)
	for n := first; n < last; n++ {
		if n > first {
			page = append(page, ',')
		}
		page = l.object(page, n)
	}
	l.respond(w, append(page, "]}"...))
}

// one responds with one object. The account check reads objects by id.
func (l *listing) one(w http.ResponseWriter, r *http.Request, of int) {
	n, err := strconv.Atoi(strings.TrimPrefix(r.PathValue("id"), "cus_"))
	if err != nil || n >= of || l.name(n) != r.PathValue("id") {
		l.other(w, r)
		return
	}
	l.others.Add(1)
	l.respond(w, l.object(nil, n))
}

// other responds with an empty list of events, and with 404 to all other requests.
func (l *listing) other(w http.ResponseWriter, r *http.Request) {
	l.others.Add(1)
	if strings.HasSuffix(r.URL.Path, "/v1/events") {
		l.respond(w, []byte(`{"object":"list","url":"/v1/events","has_more":false,"data":[]}`))
		return
	}
	http.Error(w, `{"error":{"type":"invalid_request_error","code":"resource_missing"}}`, http.StatusNotFound)
}

func (l *listing) respond(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // fails if the client has disconnected
}
