package sink

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// faults are the faults by the names under which a Desk is told of them.
var faults = map[string]Fault{"refuses": Refuses, "fails": FailsFirst, "acts_fails": ActsFails, "acts_drops": ActsDrops, "acts_hangs": ActsHangs, "drops": Drops, "hangs": Hangs, "late": Late}

// Desk is several sinks behind one address, for programs that are no tests. The first part of a path names the one that is meant (/mail/messages, /accounting/invoices). What is PUT to one path is one thing,
// whatever its key. Whoever plays says what goes wrong, and asks what was done:
//
//	POST /-/faults?fault=acts_hangs&path=/accounting/invoices&body=1002&times=1   so many requests whose path begins and whose body holds so
//	GET  /-/did                                                                  a line for each thing: how often it was done, its path, its body
//	GET  /-/hanging                                                              how many requests get no answer now
//
// ServeMail has it be a mail server as well, under the path /smtp.
type Desk struct {
	// Ignores names those that do again what comes under a key that they have seen.
	Ignores []string

	mu    sync.Mutex
	mails *Mails // nil: none is served
	sides map[string]*Sink
	plans []*plan
}

// plan is a fault that is to come.
type plan struct {
	fault      Fault
	path, body string
	times      int
}

// ServeHTTP answers for the sink that is meant, or for the desk.
func (d *Desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	switch r.URL.Path {
	case "/-/faults":
		d.plan(w, r)
	case "/-/did":
		d.tellDone(w)
	case "/-/hanging":
		d.tellHanging(w)
	case "/smtp/messages":
		d.tellMails(w, r.URL.Query().Get("id"))
	default:
		if r.Method == http.MethodPut {
			r.Header.Set("Idempotency-Key", r.URL.Path)
		}
		d.side(r.URL.Path).answer(w, r, string(body), d.fault(r.URL.Path, string(body)))
	}
}

// side is the sink that a path means.
func (d *Desk) side(path string) *Sink {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sides == nil {
		d.sides = map[string]*Sink{}
	}
	if d.sides[name] == nil {
		d.sides[name] = unserved(!slices.Contains(d.Ignores, name))
	}
	return d.sides[name]
}

// fault is what goes wrong with a request.
func (d *Desk) fault(path, body string) Fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.plans {
		if p.times > 0 && strings.HasPrefix(path, p.path) && strings.Contains(body, p.body) {
			p.times--
			return p.fault
		}
	}
	return Fine
}

func (d *Desk) plan(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	fault, known := faults[q.Get("fault")]
	times, err := strconv.Atoi(q.Get("times"))
	if !known || err != nil && q.Has("times") {
		http.Error(w, fmt.Sprintf("fault is one of %s, and times a number", strings.Join(slices.Sorted(maps.Keys(faults)), ", ")), http.StatusBadRequest)
		return
	}
	if !q.Has("times") {
		times = 1
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.plans = append(d.plans, &plan{fault, q.Get("path"), q.Get("body"), times})
}

// all are the sinks that were called, by name.
func (d *Desk) all() map[string]*Sink {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.sides)
}

func (d *Desk) tellDone(w io.Writer) {
	for _, s := range d.all() {
		did := s.Did()
		for _, what := range slices.Sorted(maps.Keys(did)) {
			fmt.Fprintln(w, did[what], strings.ReplaceAll(what, "\n", " "))
		}
	}
	d.tellTaken(w)
}

func (d *Desk) tellHanging(w io.Writer) {
	n := int64(0)
	for _, s := range d.all() {
		n += s.hanging.Load()
	}
	if mails := d.mailServer(); mails != nil {
		n += mails.hanging.Load()
	}
	fmt.Fprintln(w, n)
}
