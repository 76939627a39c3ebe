package runner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/mail"
)

const (
	// mailUnavailable is the code with which a mail server closes the connection, whatever the
	// command was.
	mailUnavailable = 421
	// mailAccepted is the code with which it accepts a message.
	mailAccepted = 250
)

// mailDialer returns the dial function for a mail server.
func mailDialer(target config.ResolvedDestination) mail.Dial {
	if target.Mail.Security == mail.None {
		return dialFunc(net.Dialer{}, requireListed(target.Allow))
	}
	return dialFunc(net.Dialer{}, requirePublic(target.Allow))
}

// sendMail submits a message and returns the result. A message that the server rejected, or did not
// receive completely, was not sent. If the server received all of it and did not respond, the
// outcome is unknown.
func (d *destination) sendMail(ctx context.Context, c *call) *result {
	ctx, cancel := context.WithTimeout(ctx, c.step.Timeout)
	defer cancel()
	err := d.config.Mail.Send(ctx, mailDialer(d.config), c.request.From, c.request.To, []byte(c.request.Body))
	rejection := mail.Rejection(err)
	d.breaker.report(err == nil || rejection != nil && rejection.Code != mailUnavailable)
	if err == nil {
		captured, _ := c.capture(response{}, "")
		return c.done(mailAccepted, captured, "")
	}
	message, status := excerpt([]byte(d.maskSecrets(err.Error()))), 0
	if rejection != nil {
		status = rejection.Code
	}
	switch {
	case errors.Is(err, mail.ErrNoResponse):
		return c.retry(effects.Unknown, 0, fmt.Sprintf("%s; its Message-ID is <%s>", message, c.messageID(c.step)), 0,
			rand.Float64())
	// an SMTP 5xx is permanent: the server will reject it again
	case errors.Is(err, errAddressNotAllowed), status >= http.StatusInternalServerError:
		end := c.stepResult(effects.StepFailed, status, message)
		end.state, end.reason = effects.Review, "step "+c.step.Name+": "+message
		return end
	}
	return c.retry(effects.StepFailed, status, message, 0, rand.Float64())
}
