package effects

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// wish is what the intents of one transaction want of one key, version and object: the intents of a rule that supersedes as if each had been planned by itself.
type wish struct {
	*Intent
	// newest: its rule supersedes, and no later intent is about the object.
	newest bool
	// between: intents of other keys came before it, which would have superseded what was there of its own.
	between bool
}

func (in *Intent) about() about {
	return about{in.Rule.Name, in.t.Number, in.t.Account, in.t.Type, in.t.ID}
}

func (in *Intent) name() name { return name{in.Key, in.Rule.Version} }

// wishes are what intents want, ordered by key; of one key, the first that wanted it comes first.
func wishes(intents []Intent) []*wish {
	type owned struct {
		about
		name
	}
	var all []*wish
	place, last := map[owned]*wish{}, map[about]*wish{}
	for i := range intents {
		in := &intents[i]
		as := owned{in.about(), in.name()}
		w, before := place[as], last[as.about]
		supersedes := in.Rule.Supersede && in.Trouble == ""
		if w != nil && (!supersedes || w == before) {
			continue
		}
		if w == nil {
			w = &wish{}
			place[as], all = w, append(all, w)
		}
		w.Intent, w.between = in, before != nil
		if supersedes {
			last[as.about] = w
		}
	}
	for w := range maps.Values(last) {
		w.newest = true
	}
	slices.SortStableFunc(all, func(a, b *wish) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Rule.Version, b.Rule.Version))
	})
	return all
}

// firsts are, of wishes in their order, the first of each key and version.
func firsts(wanted []*wish) []*wish {
	return slices.CompactFunc(slices.Clone(wanted), func(a, b *wish) bool { return a.name() == b.name() })
}

// collided is a wish whose key is that of an effect of something else: a person must see it, under a key of our own that names event, or object, and effect.
func (w *wish) collided(with entry) *wish {
	in, mine := *w.Intent, w.about()
	var other []string
	for _, of := range []struct {
		differs bool
		what    string
	}{
		{mine.source != with.about.source, "source"}, {mine.account != with.about.account, "account"},
	} {
		if of.differs {
			other = append(other, "another "+of.what)
		}
	}
	in.Trouble = fmt.Sprintf("key: %s is that of effect %d, of %s", in.Key, with.effect, strings.Join(other, ", "))
	in.Key = in.t.collisionKey(in.Rule.Name, with.effect)
	return &wish{Intent: &in}
}
