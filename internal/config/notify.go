package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/mail"
)

// Notification is somebody who is told what needs a person.
type Notification struct {
	// To is the destination that is told, one of destinations: over HTTP, signed where it has a signing_secret, or by mail.
	To string `yaml:"to" validate:"required"`
	// Path is joined to the URL of a destination over HTTP; leave unset for the URL itself.
	Path string `yaml:"path,omitempty"`
	// Mail is whom a mail goes to, where the destination is a mail server: an address or a list of them.
	Mail Words `yaml:"mail,omitempty"`
	// About is what is told: failed_runs, dead_outcomes, unknown_effects (nobody knows whether a step was done), review_effects (a person must see to them) and
	// waiting_effects (for an approval). Leave unset for all.
	About []string `yaml:"about,omitempty" shown:"all" validate:"unique,dive,oneof=failed_runs dead_outcomes unknown_effects review_effects waiting_effects"`
	// Every is how often at most one is told of each of these: at first at once, then again while it lasts, and once when it is over.
	Every time.Duration `yaml:"every,omitempty" default:"1h" validate:"gte=60000000000,lte=2592000000000000"`
	// After is for how long an effect must have been in doubt, or waited for a person, before that is told.
	After time.Duration `yaml:"after,omitempty" default:"15m" validate:"gte=1000000000,lte=2592000000000000"`
}

// Recipients are whom a mail goes to. It is for a Config that was checked.
func (n *Notification) Recipients() (all []mail.Address) {
	for _, text := range n.Mail {
		if a, err := mail.ParseAddress(text); err == nil {
			all = append(all, a)
		}
	}
	return all
}

// Reach is how a destination is called; nil: there is none of that name.
func (c *Config) Reach(name string) *Reach {
	for _, r := range c.Reaches() {
		if r.Name == name {
			return &r
		}
	}
	return nil
}

// checkNotify tells what is wrong with who is told.
func checkNotify(c *Config) error {
	var bad []error
	for _, name := range sortedKeys(c.Notify) {
		n, path := c.Notify[name], "notify."+name
		fail := func(setting, format string, args ...any) {
			bad = append(bad, &Problem{Path: path + "." + setting, Msg: fmt.Sprintf(format, args...)})
		}
		d := c.Destinations[n.To]
		if d == nil {
			fail("to", "destination %q is not configured", n.To)
			continue
		}
		switch mails := !isZero(d.SMTP); {
		case mails && len(n.Mail) == 0:
			fail("mail", "destination %s is a mail server: say whom the mail goes to", n.To)
		case mails && n.Path != "":
			fail("path", "destination %s is a mail server: leave this out", n.To)
		case !mails && len(n.Mail) > 0:
			fail("mail", "destination %s is no mail server: leave this out, or name one that has smtp", n.To)
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
