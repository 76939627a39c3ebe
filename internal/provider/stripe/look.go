package stripe

import (
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.Looker = Stripe{}

// lag is how old a state the API is taken to answer with. Stripe documents none for a retrieve; a second costs at most one look more.
const lag = time.Second

// Lag is a second.
func (Stripe) Lag() time.Duration { return lag }

// Snapshot reads an object as GET answers it: whole, or a stub that says it was deleted.
func (Stripe) Snapshot(_ *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	r := types[s.ObjectType]
	o := provider.Observation{Account: s.Account, ObjectType: s.ObjectType, ObjectID: s.ObjectID, Unit: second, Rank: 1}
	if r.ignored != "" {
		o.Ignored = r.ignored
		return o, nil
	}
	if s.Missing {
		o.Deleted = true // never final: it may have been asked for before it was created
		return o, nil
	}
	object, err := provider.ReadObject(s.Body)
	if err != nil {
		return o, err
	}
	if err := r.answers(s, object); err != nil {
		return o, err
	}
	if gone, _ := object.Get("deleted").Bool(); gone {
		o.Deleted, o.Final = true, r.final && !r.shares(object) // the stub says nothing else of the object
		return o, nil
	}
	o.State, o.Rank, o.Volatile = object, r.rank("", object), r.volatile
	o.AnyTime = text(object, "test_clock") != "" || s.ObjectType == "test_helpers.test_clock"
	event{object: object}.ownVersion(r, &o)
	return o, nil
}

// answers refuses an answer about another object than the one that was asked for. An object that does not tell its mode (an account, a capability, a stub) is in that of the key, which Fetch
// has held against the account's.
func (r row) answers(s *provider.Snapshot, object *canonical.Value) error {
	if got := text(object, "object"); got != s.ObjectType {
		return &provider.Dead{Reason: fmt.Sprintf("asked for the %s %s, the API answered an object of type %s", s.ObjectType, s.ObjectID, s.API.Quote(got, 64))}
	}
	_, tells := object.Get("livemode").Bool()
	if real, _ := realAccount(s.Account); tells && r.tenant(real, object) != s.Account {
		return &provider.Dead{Reason: fmt.Sprintf("asked for the %s %s of the account %q, the API answered one of the other mode (test or live)", s.ObjectType, s.ObjectID, s.Account)}
	}
	if got := r.key(object); got != s.ObjectID {
		return &provider.Dead{Reason: fmt.Sprintf("asked for the %s %s, the API answered %s", s.ObjectType, s.ObjectID, s.API.Quote(got, 64))}
	}
	return nil
}
