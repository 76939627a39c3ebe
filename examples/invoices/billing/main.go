// Command billing serves the API of a billing service with 250 invoices. Every fifth invoice is
// overdue in the list, which has pages of 50, in the order of the numbers. The customer pays the
// last one after that.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	invoices = 250
	page     = 50
	key      = "key-of-the-billing-api"
)

// billing is the handler of the API.
type billing struct {
	// hold are the requests that get no response the first time. held are those that were made, and
	// holding counts the requests that wait.
	hold    []string
	held    sync.Map
	holding atomic.Int64
}

func main() {
	listen := flag.String("listen", "127.0.0.1:9091", "address to listen on; port 0 picks a free one")
	b := &billing{}
	hold := flag.String("hold", "", "requests that get no response the first time, e.g. /invoices/in_0010")
	flag.Parse()
	b.hold = strings.Split(*hold, ",")
	l, err := net.Listen("tcp", *listen)
	if err == nil {
		fmt.Printf("listening on http://%s\n", l.Addr())
		err = (&http.Server{Handler: b.routes(), ReadHeaderTimeout: 10 * time.Second}).Serve(l)
	}
	fmt.Fprintln(os.Stderr, "billing:", err)
	os.Exit(1)
}

func (b *billing) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /me", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]any{"name": "a billing service"})
	})
	mux.HandleFunc("GET /invoices", b.list)
	mux.HandleFunc("GET /invoices/{id}", b.one)
	all := http.NewServeMux()
	all.HandleFunc("GET /-/holding", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, b.holding.Load()) })
	all.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Api-Key") != key {
			answer(w, http.StatusUnauthorized, map[string]any{"error": "no such key"})
			return
		}
		if uri := r.URL.RequestURI(); slices.Contains(b.hold, uri) {
			if _, again := b.held.LoadOrStore(uri, true); !again {
				b.holding.Add(1)
				<-r.Context().Done()
				b.holding.Add(-1)
				return
			}
		}
		mux.ServeHTTP(w, r)
	})
	return all
}

// list responds with the page after an invoice: GET /invoices?after=in_0100.
func (*billing) list(w http.ResponseWriter, r *http.Request) {
	after := number(r.URL.Query().Get("after"))
	var items []any
	for n := after + 1; n <= min(after+page, invoices); n++ {
		items = append(items, invoice(n))
	}
	var next any
	if after+page < invoices {
		next = name(after + page)
	}
	answer(w, http.StatusOK, map[string]any{"items": items, "next": next})
}

func (*billing) one(w http.ResponseWriter, r *http.Request) {
	n := number(r.PathValue("id"))
	if n < 1 || n > invoices {
		answer(w, http.StatusNotFound, map[string]any{"error": "no such invoice"})
		return
	}
	one := invoice(n)
	if n == invoices {
		one["status"] = "paid"
	}
	answer(w, http.StatusOK, one)
}

func invoice(n int) map[string]any {
	status := "paid"
	if n%5 == 0 {
		status = "overdue"
	}
	return map[string]any{"id": name(n), "number": n, "status": status, "email": fmt.Sprintf("customer%d@example.com",
		n%40), "total": fmt.Sprintf("%d.90", 10+n),
		"updated_at": time.Date(2026, 11, 1, 8, 0, n, 0, time.UTC).Format(time.RFC3339)}
}

func name(n int) string { return fmt.Sprintf("in_%04d", n) }

// number returns the number in the id of an invoice; 0 if it is not an id.
func number(name string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(name, "in_"))
	if err != nil {
		return 0
	}
	return n
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // a client that has disconnected needs no response
}
