package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/mail"
	"github.com/postern-gateway/postern/internal/settings"
)

// Notification is an alert: it tells a recipient about work that needs an operator.
type Notification struct {
	// To is the name of the destination: an HTTP service or a mail server. Calls of an HTTP service
	// are signed if the destination has a signing_secret.
	To string `yaml:"to" validate:"required"`
	// Path is joined to the URL of an HTTP destination. Leave it unset to use the URL itself.
	Path string `yaml:"path,omitempty"`
	// Mail is the recipient, if the destination is a mail server: an address or a list of
	// addresses.
	Mail settings.List[string] `yaml:"mail,omitempty"`
	// Conditions selects the alerts: failed_runs, dead_outcomes, effects_with_unknown_outcome
	// (steps with an unknown outcome), effects_needing_review (effects that an operator must
	// review), effects_awaiting_approval (effects that await approval) and stalled_feeds (feed
	// cursors that stand still for longer than their readers said). Leave it unset for all.
	Conditions []string `yaml:"conditions,omitempty" unset:"all" validate:"unique,dive,oneof=failed_runs dead_outcomes effects_with_unknown_outcome effects_needing_review effects_awaiting_approval stalled_feeds"`
	// Interval is the minimum time between two notifications of one alert. Postern sends the first
	// notification immediately, further ones while the condition lasts, and one when it ends.
	Interval time.Duration `yaml:"every,omitempty" default:"1h" validate:"gte=60000000000,lte=2592000000000000"`
	// Delay is how long an effect must have an unknown outcome, or wait for an operator, before
	// Postern sends an alert.
	Delay time.Duration `yaml:"after,omitempty" default:"15m" validate:"gte=1000000000,lte=2592000000000000"`
}

// Recipients returns the mail recipients of a checked Config.
func (n *Notification) Recipients() (all []mail.Address) {
	for _, text := range n.Mail {
		if a, err := mail.ParseAddress(text); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// ResolveDestination returns how to call a destination, or nil where none has that name.
func (c *Config) ResolveDestination(name string) *ResolvedDestination {
	for _, r := range c.ResolveDestinations() {
		if r.Name == name {
			return &r
		}
	}
	return nil
}

// checkNotify returns the problems of alerts.
func checkNotify(c *Config) error {
	var bad []error
	for _, name := range sortedKeys(c.Notify) {
		n, path := c.Notify[name], "notify."+name
		fail := func(setting, format string, args ...any) {
			bad = append(bad, &settings.Problem{Path: path + "." + setting, Msg: fmt.Sprintf(format, args...)})
		}
		d := c.Destinations[n.To]
		if d == nil {
			fail("to", "destination %q is not configured%s", n.To, didYouMean(n.To, sortedKeys(c.Destinations), ""))
			continue
		}
		switch mails := !settings.IsZero(d.SMTP); {
		case mails && len(n.Mail) == 0:
			fail("mail", "destination %s is a mail server: write the recipient", n.To)
		case mails && n.Path != "":
			fail("path", "destination %s is a mail server: leave this out", n.To)
		case !mails && len(n.Mail) > 0:
			fail("mail", "destination %s is not a mail server: leave this out, or name one with smtp", n.To)
		}
		if n.Path != "" && !strings.HasPrefix(n.Path, "/") {
			fail("path", "%q: begin with /; it is joined to the destination's url", n.Path)
		}
		for i, text := range n.Mail {
			if _, err := mail.ParseAddress(text); err != nil {
				fail(fmt.Sprintf("mail.%d", i), "%v", err)
			}
		}
	}
	return errors.Join(bad...)
}
