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

// mailFaults are the faults that a mail server has as well.
var mailFaults = map[Fault]MailFault{Refuses: MailLater, FailsFirst: MailFull, Drops: MailDrops, ActsDrops: MailTakesDrops, ActsHangs: MailTakesHangs}

// ServeMail takes mail from a listener until that is closed. Its faults are those of the path /smtp, of which each mail takes one; /-/did has a line for each recipient and subject; and whoever wants to know whether a mail was taken asks
//
//	GET /smtp/messages?id=MESSAGE-ID   {"messages": [{"id": ..., "to": ...}]}
func (d *Desk) ServeMail(l net.Listener) error {
	mails := &Mails{next: func() MailFault { return mailFaults[d.fault("/smtp", "")] }}
	d.mu.Lock()
	d.mails = mails
	d.mu.Unlock()
	var dialogues sync.WaitGroup
	defer dialogues.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		dialogues.Go(func() {
			defer conn.Close()
			_ = mails.serve(conn) // whoever sends tells what came of it
		})
	}
}

// mailServer is the one that is served; nil: none.
func (d *Desk) mailServer() *Mails {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mails
}

// letter is what is told of a mail that was taken.
type letter struct {
	ID      string `json:"id"`
	To      string `json:"to"`
	Subject string `json:"subject"`
}

// letters are the mails that were taken.
func (d *Desk) letters() (all []letter) {
	mails := d.mailServer()
	if mails == nil {
		return nil
	}
	for _, m := range mails.Taken() {
		l := letter{To: strings.Join(m.To, ", ")}
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

// tellMails answers those of an id, with or without its brackets.
func (d *Desk) tellMails(w http.ResponseWriter, id string) {
	found := []letter{}
	for _, l := range d.letters() {
		if strings.Trim(l.ID, "<>") == strings.Trim(id, "<>") {
			found = append(found, l)
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"messages": found}) // a caller that is gone needs none
}

func (d *Desk) tellTaken(w io.Writer) {
	did := map[string]int{}
	for _, l := range d.letters() {
		did["/smtp "+l.To+" "+l.Subject]++
	}
	for _, what := range slices.Sorted(maps.Keys(did)) {
		fmt.Fprintln(w, did[what], what)
	}
}
