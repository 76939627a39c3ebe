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

// Notice is a message to a destination that does not belong to an effect. A repetition does no
// harm.
type Notice struct {
	// ID is the same for each repetition of a notice.
	ID string
	At time.Time
	// Path and JSON are the request to a destination over HTTP.
	Path string
	JSON []byte
	// To, Subject and Text are the mail to a mail server.
	To            []mail.Address
	Subject, Text string
}

// SendNotice sends a notice once, with the destination's key and signature, within its timeout.
// Only addresses that effects may use are called. After an error, the notice may still have
// arrived.
func SendNotice(ctx context.Context, target config.ResolvedDestination, n Notice) error {
	d := &destination{config: target}
	ctx, cancel := context.WithTimeout(ctx, target.Timeout)
	defer cancel()
	var err error
	if target.Mail != nil {
		err = d.sendNoticeByMail(ctx, n)
	} else {
		err = d.sendNoticeByHTTP(ctx, n)
	}
	if err != nil {
		return fmt.Errorf("destination %s: %s", target.Name, excerpt([]byte(d.maskSecrets(withoutURL(err).Error()))))
	}
	return nil
}

func (d *destination) sendNoticeByMail(ctx context.Context, n Notice) error {
	m := mail.Message{ID: n.ID + "@" + d.config.Mail.Hello, Date: n.At, From: d.config.Mail.From, To: n.To,
		Subject: n.Subject, Text: n.Text, Headers: map[string]string{"Auto-Submitted": "auto-generated"}}
	b, err := m.Bytes()
	if err != nil {
		return err
	}
	to := make([]string, len(n.To))
	for i := range n.To {
		to[i] = n.To[i].Address
	}
	return d.config.Mail.Send(ctx, mailDialer(d.config), m.From.Address, to, b)
}

func (d *destination) sendNoticeByHTTP(ctx context.Context, n Notice) error {
	client := newClient(d.config.Allow, 1)
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.config.URL+n.Path, strings.NewReader(string(n.JSON)))
	if err != nil {
		return err
	}
	for name, values := range d.config.Headers {
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
		body, _ := io.ReadAll(io.LimitReader(res.Body, maxExcerpt))
		return fmt.Errorf("status %d: %s", res.StatusCode, body)
	}
	return nil
}
