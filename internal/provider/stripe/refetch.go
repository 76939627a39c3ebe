package stripe

import (
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.Refetcher = Stripe{}

// lag is how old a state in a response is assumed to be. Stripe documents none for a retrieve. A
// second costs at most one more refetch.
const lag = time.Second

// Lag returns a second.
func (Stripe) Lag() time.Duration { return lag }

// Snapshot reads the response to GET: the whole object, or a stub that says that it was deleted.
func (Stripe) Snapshot(_ *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	r := types[s.ObjectType]
	o := provider.Observation{Account: s.Account, ObjectType: s.ObjectType, ObjectID: s.ObjectID, Unit: second, Rank: 1}
	if r.ignoredReason != "" {
		o.Ignored = r.ignoredReason
		return o, nil
	}
	if s.Missing {
		o.Deleted = true // never final: the refetch may have run before the object was created
		return o, nil
	}
	object, err := provider.ReadObject(s.Body)
	if err != nil {
		return o, err
	}
	if err := r.checkObject(s, object); err != nil {
		return o, err
	}
	if deleted, _ := object.Get("deleted").Bool(); deleted {
		o.Deleted, o.Final = true, r.final && !r.sharesID(object) // the stub contains nothing else
		return o, nil
	}
	o.State, o.Rank, o.IgnoredPaths = object, r.rank("", object), r.ignoredPaths
	o.AllowFuture = text(object, "test_clock") != "" || s.ObjectType == "test_helpers.test_clock"
	event{object: object}.ownVersion(r, &o)
	return o, nil
}

// checkObject rejects a response with another object than the requested one. An object without a
// mode (an account, a capability, a stub) has the mode of the key, which Fetch has compared with
// the account's.
func (r typeRule) checkObject(s *provider.Snapshot, object *canonical.Value) error {
	if got := text(object, "object"); got != s.ObjectType {
		return &provider.Dead{Reason: fmt.Sprintf("requested the %s %s, and the API returned an object of type %s",
			s.ObjectType, s.ObjectID, s.API.Quote(got, 64))}
	}
	_, hasMode := object.Get("livemode").Bool()
	if real, _ := realAccount(s.Account); hasMode && r.tenant(real, object) != s.Account {
		return &provider.Dead{Reason: fmt.Sprintf("requested the %s %s of the account %q, and the API returned one of "+
			"the other mode (test or live)", s.ObjectType, s.ObjectID, s.Account)}
	}
	if got := r.key(object); got != s.ObjectID {
		return &provider.Dead{Reason: fmt.Sprintf("requested the %s %s, and the API returned %s", s.ObjectType,
			s.ObjectID, s.API.Quote(got, 64))}
	}
	return nil
}
