package github

import (
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// lag is how old a state in a response is assumed to be. GitHub documents none. A second costs at
// most one more refetch.
const lag = time.Second

// Lag returns a second.
func (GitHub) Lag() time.Duration { return lag }

// Snapshot reads the response to GET: the whole object, ordered by its updated_at if it has one.
func (GitHub) Snapshot(_ *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	o := provider.Observation{Account: s.Account, ObjectType: s.ObjectType, ObjectID: s.ObjectID, Unit: second, Rank: 1}
	if s.Missing {
		o.Deleted = true // never final: the refetch may have run before the object was created
		return o, nil
	}
	r := ruleOf(s.ObjectType)
	if _, ok := gets[s.ObjectType]; !ok || r == nil {
		return o, newDead("objects of type %.64s are not read from the API", s.ObjectType)
	}
	root, err := wrapAsMember(r.member, s.Body)
	if err != nil {
		return o, err
	}
	if got := number(root.Get(r.member, "id")); got != s.ObjectID {
		return o, &provider.Dead{WrongObject: true,
			Reason: fmt.Sprintf("requested the %s %s, and the API returned the one "+
				"with id %s: the object was transferred, or its repository's name was reused",
				s.ObjectType, s.ObjectID, s.API.Quote(got, 64))}
	}
	if field := r.missingField(root); field != "" {
		return o, newDead("the API's response has no %s: it is not a whole %s", field, s.ObjectType)
	}
	if at, ok := readTime(at(root, r.versionPath())); ok {
		o.At, o.HasAt, o.OwnVersion, o.MayNotAdvance = at+r.attemptOffset(root), true, true, r.mayNotAdvance
	}
	o.State, o.IgnoredPaths = root.Get(r.member), r.ignoredPaths
	return o, nil
}
