package effects

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// candidate merges the planned effects of one transaction that have the same key, version and
// object. For a rule that supersedes, the result is the same as if each were planned separately.
type candidate struct {
	*PlannedEffect
	// isLast reports that its rule supersedes, and that no later effect of the rule is about the
	// object.
	isLast bool
	// interrupted reports that an effect of another key came in between, which would have
	// superseded an existing effect of this key.
	interrupted bool
}

func (e *PlannedEffect) subject() subject {
	return subject{e.Rule.Name, e.transition.Number, e.transition.Account, e.transition.Type, e.transition.ID}
}

func (e *PlannedEffect) ledgerKey() ledgerKey { return ledgerKey{e.Key, e.Rule.Version} }

// mergeCandidates merges effects into candidates, ordered by key. Candidates of the same key are in
// the order of their first effects.
func mergeCandidates(effects []PlannedEffect) []*candidate {
	type candidateKey struct {
		subject
		ledgerKey
	}
	var all []*candidate
	byKey, lastOf := map[candidateKey]*candidate{}, map[subject]*candidate{}
	for i := range effects {
		planned := &effects[i]
		key := candidateKey{planned.subject(), planned.ledgerKey()}
		c, previous := byKey[key], lastOf[key.subject]
		supersedes := planned.Rule.Supersede && planned.Failure == ""
		if c != nil && (!supersedes || c == previous) {
			continue
		}
		if c == nil {
			c = &candidate{}
			byKey[key], all = c, append(all, c)
		}
		c.PlannedEffect, c.interrupted = planned, previous != nil
		if supersedes {
			lastOf[key.subject] = c
		}
	}
	for c := range maps.Values(lastOf) {
		c.isLast = true
	}
	slices.SortStableFunc(all, func(a, b *candidate) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Rule.Version, b.Rule.Version))
	})
	return all
}

// firstPerKey returns the first candidate of each key and version, in order.
func firstPerKey(candidates []*candidate) []*candidate {
	return slices.CompactFunc(slices.Clone(candidates),
		func(a, b *candidate) bool { return a.ledgerKey() == b.ledgerKey() })
}

// asCollision returns the candidate for a key that belongs to an effect of another account. An
// operator has to see it. Its generated key names the event or object, and the existing effect.
func (c *candidate) asCollision(entry ledgerEntry) *candidate {
	planned, own := *c.PlannedEffect, c.subject()
	var other []string
	for _, part := range []struct {
		differs bool
		name    string
	}{
		{own.source != entry.subject.source, "source"}, {own.account != entry.subject.account, "account"},
	} {
		if part.differs {
			other = append(other, "another "+part.name)
		}
	}
	planned.Failure = fmt.Sprintf("key: %s belongs to effect %d, of %s", planned.Key, entry.effect,
		strings.Join(other, ", "))
	planned.Key = planned.transition.collisionKey(planned.Rule.Name, entry.effect)
	return &candidate{PlannedEffect: &planned}
}
