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
	// unavailable is how a mail server says that it is going away, whatever it was asked.
	unavailable = 421
	// mailTaken is how it says that it has taken a message.
	mailTaken = 250
)

// mailDialer makes the connections to a mail server.
func mailDialer(reach config.Reach) mail.Dial {
	if reach.Mail.Security == mail.None {
		return dialing(net.Dialer{}, named(reach.Allow))
	}
	return dialing(net.Dialer{}, guarded(reach.Allow))
}

// mail hands a message in and says what came of it. What the server refused, or did not get whole, was not sent; what it got whole and did not answer, nobody knows of.
func (d *destination) mail(ctx context.Context, c *call) *ending {
	ctx, cancel := context.WithTimeout(ctx, c.step.Timeout)
	defer cancel()
	err := d.reach.Mail.Send(ctx, mailDialer(d.reach), c.request.From, c.request.To, []byte(c.request.Body))
	told := mail.Refusal(err)
	d.breaker.tell(err == nil || told != nil && told.Code != unavailable)
	if err == nil {
		captured, _ := c.capture(answer{}, "")
		return c.done(mailTaken, captured, "")
	}
	trouble, status := excerpt([]byte(d.clean(err.Error()))), 0
	if told != nil {
		status = told.Code
	}
	switch {
	case errors.Is(err, mail.ErrUnanswered):
		return c.again(effects.Unknown, 0, fmt.Sprintf("%s; its Message-ID is <%s>", trouble, c.messageID(c.step)), 0, rand.Float64())
	case errors.Is(err, errGuarded), status >= http.StatusInternalServerError: // what SMTP means by 5xx: it will be refused again
		end := c.stepped(effects.StepFailed, status, trouble)
		end.state, end.reason = effects.Review, "step "+c.step.Name+": "+trouble
		return end
	}
	return c.again(effects.StepFailed, status, trouble, 0, rand.Float64())
}
