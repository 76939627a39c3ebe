package sink

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/mail"
	"slices"
	"strings"
	"sync"
)

// mailFaults are the faults that the mail server supports as well.
var mailFaults = map[Fault]MailFault{RateLimits: MailTemporaryFailure, FailsBeforeActing: MailboxFull,
	DropsBeforeActing: MailDropsBeforeMessage,
	ActsThenDrops:     MailAcceptsThenDrops, ActsThenHangs: MailAcceptsThenHangs}

// ServeMail accepts mail from a listener until the listener is closed. Each mail takes one planned
// fault of the path /smtp. /-/did has a line for each recipient and subject. Another request tells
// whether a mail was accepted:
//
//	GET /smtp/messages?id=MESSAGE-ID   {"messages": [{"id": ..., "to": ...}]}
func (d *Server) ServeMail(l net.Listener) error {
	mails := &MailServer{nextFault: func() MailFault { return mailFaults[d.nextFault("/smtp", "")] }}
	d.mu.Lock()
	d.mails = mails
	d.mu.Unlock()
	var sessions sync.WaitGroup
	defer sessions.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		sessions.Go(func() {
			defer conn.Close()
			_ = mails.serve(conn) // the sender reports the result
		})
	}
}

// mailServer returns the mail server, or nil if there is none.
func (d *Server) mailServer() *MailServer {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mails
}

// mailSummary describes an accepted mail.
type mailSummary struct {
	ID      string `json:"id"`
	To      string `json:"to"`
	Subject string `json:"subject"`
}

// mailSummaries returns the accepted mails.
func (d *Server) mailSummaries() (all []mailSummary) {
	mails := d.mailServer()
	if mails == nil {
		return nil
	}
	for _, m := range mails.Accepted() {
		l := mailSummary{To: strings.Join(m.To, ", ")}
		if read, err := mail.ReadMessage(strings.NewReader(m.Message)); err == nil {
			l.ID, l.Subject = read.Header.Get("Message-Id"), read.Header.Get("Subject")
		}
		if plain, err := (&mime.WordDecoder{}).DecodeHeader(l.Subject); err == nil {
			l.Subject = plain
		}
		all = append(all, l)
	}
	return all
}

// writeMails writes the mails of an id, with or without angle brackets.
func (d *Server) writeMails(w http.ResponseWriter, id string) {
	found := []mailSummary{}
	for _, l := range d.mailSummaries() {
		if strings.Trim(l.ID, "<>") == strings.Trim(id, "<>") {
			found = append(found, l)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"messages": found}) // an error means that the caller is gone
}

func (d *Server) writeMailCounts(w io.Writer) {
	did := map[string]int{}
	for _, l := range d.mailSummaries() {
		did["/smtp "+l.To+" "+l.Subject]++
	}
	for _, what := range slices.Sorted(maps.Keys(did)) {
		fmt.Fprintln(w, did[what], what)
	}
}
