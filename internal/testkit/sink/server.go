package sink

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// faultsByName maps the names of faults in requests to a Server.
var faultsByName = map[string]Fault{"refuses": RateLimits, "fails": FailsBeforeActing, "acts_fails": ActsThenFails,
	"acts_drops": ActsThenDrops,
	"acts_hangs": ActsThenHangs, "drops": DropsBeforeActing, "hangs": HangsBeforeActing, "late": ActsThenRespondsLate}

// Server serves several sinks at one address, for programs that are not tests. The first part of
// the path names the sink (/mail/messages, /accounting/invoices). All PUT requests to one path are
// one action, whatever their key. The caller plans faults and reads the actions:
//
//	POST /-/faults?fault=acts_hangs&path=/accounting/invoices&body=1002&times=1
//	GET  /-/did
//	GET  /-/hanging
//
// The first plans a fault for a number of requests, whose path begins with path and whose body
// contains body; without a body, the query of the request contains it. The second returns a line
// for each action: how often it was executed, its path and its body. The third returns the number
// of requests that hang now.
//
// ServeMail adds a mail server under the path /smtp.
type Server struct {
	// IgnoresKeys names the sinks that execute a request again when they have already seen its key.
	IgnoresKeys []string

	mu            sync.Mutex
	mails         *MailServer // nil: no mail server
	sinks         map[string]*Sink
	plannedFaults []*plannedFault
}

// plannedFault is a fault of future requests.
type plannedFault struct {
	fault      Fault
	path, body string
	times      int
}

// ServeHTTP serves the requests of the server itself, and passes the others to the sink of their
// path.
func (d *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	switch r.URL.Path {
	case "/-/faults":
		d.planFault(w, r)
	case "/-/did":
		d.writeActions(w)
	case "/-/hanging":
		d.writeHanging(w)
	case "/smtp/messages":
		d.writeMails(w, r.URL.Query().Get("id"))
	default:
		if r.Method == http.MethodPut {
			r.Header.Set("Idempotency-Key", r.URL.Path)
		}
		d.sinkFor(r.URL.Path).respond(w, r, string(body), d.nextFault(r.URL.Path, cmp.Or(string(body), r.URL.RawQuery)))
	}
}

// sinkFor returns the sink of a path.
func (d *Server) sinkFor(path string) *Sink {
	name, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sinks == nil {
		d.sinks = map[string]*Sink{}
	}
	if d.sinks[name] == nil {
		d.sinks[name] = newSink(!slices.Contains(d.IgnoresKeys, name))
	}
	return d.sinks[name]
}

// nextFault returns the fault of a request.
func (d *Server) nextFault(path, body string) Fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.plannedFaults {
		if p.times > 0 && strings.HasPrefix(path, p.path) && strings.Contains(body, p.body) {
			p.times--
			return p.fault
		}
	}
	return NoFault
}

func (d *Server) planFault(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	fault, known := faultsByName[q.Get("fault")]
	times, err := strconv.Atoi(q.Get("times"))
	if !known || err != nil && q.Has("times") {
		http.Error(w, fmt.Sprintf("fault must be one of %s, and times a number",
			strings.Join(slices.Sorted(maps.Keys(faultsByName)), ", ")), http.StatusBadRequest)
		return
	}
	if !q.Has("times") {
		times = 1
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.plannedFaults = append(d.plannedFaults, &plannedFault{fault, q.Get("path"), q.Get("body"), times})
}

// allSinks returns the sinks that were called, by name.
func (d *Server) allSinks() map[string]*Sink {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.sinks)
}

func (d *Server) writeActions(w io.Writer) {
	for _, s := range d.allSinks() {
		did := s.ActionCounts()
		for _, what := range slices.Sorted(maps.Keys(did)) {
			fmt.Fprintln(w, did[what], strings.ReplaceAll(what, "\n", " "))
		}
	}
	d.writeMailCounts(w)
}

func (d *Server) writeHanging(w io.Writer) {
	n := int64(0)
	for _, s := range d.allSinks() {
		n += s.hanging.Load()
	}
	if mails := d.mailServer(); mails != nil {
		n += mails.hanging.Load()
	}
	fmt.Fprintln(w, n)
}
