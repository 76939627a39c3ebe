package github

import (
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// lag is how old a state the API is taken to answer with. GitHub documents none; a second costs at most one look more.
const lag = time.Second

// Lag is a second.
func (GitHub) Lag() time.Duration { return lag }

// Snapshot reads an object as GET answers it: whole, and ordered by its updated_at where it has one.
func (GitHub) Snapshot(_ *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	o := provider.Observation{Account: s.Account, ObjectType: s.ObjectType, ObjectID: s.ObjectID, Unit: second, Rank: 1}
	if s.Missing {
		o.Deleted = true // never final: it may have been asked for before it was created
		return o, nil
	}
	r := rowOf(s.ObjectType)
	if _, ok := gets[s.ObjectType]; !ok || r == nil {
		return o, dead("the API is not read for a %.64s", s.ObjectType)
	}
	root, err := asMember(r.member, s.Body)
	if err != nil {
		return o, err
	}
	if got := number(root.Get(r.member, "id")); got != s.ObjectID {
		return o, &provider.Dead{Moved: true, Reason: fmt.Sprintf("asked for the %s %s, the API answered the one with id %s: the object was transferred, or its repository's name was given again",
			s.ObjectType, s.ObjectID, s.API.Quote(got, 64))}
	}
	if field := r.lacking(root); field != "" {
		return o, dead("the API's answer has no %s: it is no whole %s", field, s.ObjectType)
	}
	if at, ok := readTime(at(root, r.versionPath())); ok {
		o.At, o.HasAt, o.Own, o.Still = at+r.attempts(root), true, true, r.still
	}
	o.State, o.Volatile = root.Get(r.member), r.volatile
	return o, nil
}
