package runner

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/mail"
)

// Notice is something that a destination is told beside the ledger of effects. Telling it twice does no harm.
type Notice struct {
	// ID is the same each time that one notice is sent.
	ID string
	At time.Time
	// Path and JSON are what is posted to a destination over HTTP.
	Path string
	JSON []byte
	// To, Subject and Text are the mail where it is a mail server.
	To            []mail.Address
	Subject, Text string
}

// Tell sends a notice: to where effects may go, with the destination's key and signature, within its timeout. It is sent once; an error says nothing of whether it came.
func Tell(ctx context.Context, reach config.Reach, n Notice) error {
	d := &destination{reach: reach}
	ctx, cancel := context.WithTimeout(ctx, reach.Timeout)
	defer cancel()
	var err error
	if reach.Mail != nil {
		err = d.tellByMail(ctx, n)
	} else {
		err = d.tellByHTTP(ctx, n)
	}
	if err != nil {
		return fmt.Errorf("destination %s: %s", reach.Name, excerpt([]byte(d.clean(told(err).Error()))))
	}
	return nil
}

func (d *destination) tellByMail(ctx context.Context, n Notice) error {
	m := mail.Message{ID: n.ID + "@" + d.reach.Mail.Hello, Date: n.At, From: d.reach.Mail.From, To: n.To, Subject: n.Subject, Text: n.Text, Headers: map[string]string{"Auto-Submitted": "auto-generated"}}
	b, err := m.Bytes()
	if err != nil {
		return err
	}
	to := make([]string, len(n.To))
	for i := range n.To {
		to[i] = n.To[i].Address
	}
	return d.reach.Mail.Send(ctx, mailDialer(d.reach), m.From.Address, to, b)
}

func (d *destination) tellByHTTP(ctx context.Context, n Notice) error {
	client := newClient(d.reach.Allow, 1)
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.reach.URL+n.Path, strings.NewReader(string(n.JSON)))
	if err != nil {
		return err
	}
	for name, values := range d.reach.Headers {
		req.Header[name] = values
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", userAgent)
	d.sign(req.Header, n.ID, string(n.JSON), time.Now())
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode > 299 {
		body, _ := io.ReadAll(io.LimitReader(res.Body, maxTrouble))
		return fmt.Errorf("status %d: %s", res.StatusCode, body)
	}
	return nil
}
