package admin

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/access"
)

// Refusals counts the requests that were refused for who made them. A nil one counts nothing.
type Refusals struct{ total *prometheus.CounterVec }

// NewRefusals registers the counts.
func NewRefusals(reg prometheus.Registerer) (*Refusals, error) {
	r := &Refusals{prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_admin_refusals_total",
		Help: "Requests to the admin address that were refused for who made them, by reason: no_token, token (it is not in force, or none of ours), role (a reader's token), " +
			"host (no loopback name, where no token is needed) or unread (PostgreSQL did not say which tokens are in force)."}, []string{"reason"})}
	for _, reason := range []string{"no_token", "token", "role", "host", "unread"} {
		r.total.WithLabelValues(reason)
	}
	return r, reg.Register(r.total)
}

// add counts a refusal by its error.
func (r *Refusals) add(err error) {
	if r == nil {
		return
	}
	reason := "unread"
	switch {
	case errors.Is(err, access.ErrUnknown):
		reason = "token"
	case errors.Is(err, errNoToken):
		reason = "no_token"
	case errors.Is(err, access.ErrRole):
		reason = "role"
	case errors.Is(err, errForeignHost):
		reason = "host"
	}
	r.total.WithLabelValues(reason).Inc()
}
