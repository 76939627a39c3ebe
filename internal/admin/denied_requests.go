package admin

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/adminauth"
)

// DeniedRequests counts requests that were denied because of their caller. A nil value counts
// nothing.
type DeniedRequests struct{ total *prometheus.CounterVec }

// NewDeniedRequests registers the metric.
func NewDeniedRequests(reg prometheus.Registerer) (*DeniedRequests, error) {
	r := &DeniedRequests{prometheus.NewCounterVec(prometheus.CounterOpts{Name: "postern_admin_rejections_total",
		Help: "Requests to the admin address and logins to the console that were denied because of their caller, by " +
			"reason: no_token (it sent none), token (its token is invalid), role (the token's role does not allow " +
			"it), host (the host name is not a loopback name, although no token is required) or unread (PostgreSQL " +
			"did not return the valid tokens)."}, []string{"reason"})}
	for _, reason := range []string{"no_token", "token", "role", "host", "unread"} {
		r.total.WithLabelValues(reason)
	}
	return r, reg.Register(r.total)
}

// Add counts a denied request, or a failed login to the console, by its error.
func (r *DeniedRequests) Add(err error) {
	if r == nil {
		return
	}
	reason := "unread"
	switch {
	case errors.Is(err, adminauth.ErrUnknownToken):
		reason = "token"
	case errors.Is(err, errNoToken):
		reason = "no_token"
	case errors.Is(err, adminauth.ErrRole):
		reason = "role"
	case errors.Is(err, errForeignHost):
		reason = "host"
	}
	r.total.WithLabelValues(reason).Inc()
}
