package providertest

import (
	"fmt"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
)

// Summary writes an observation as one line for test tables: the object, the kind of observation,
// and the version.
func Summary(o provider.Observation, err error) string {
	switch {
	case err != nil:
		return "dead: " + err.Error()
	case o.Ignored != "":
		return "ignored: " + o.Ignored
	}
	words := []string{strings.TrimPrefix(o.Account+" ", " ") + o.ObjectType + " " + o.ObjectID}
	if o.HasAt {
		words = append(words, fmt.Sprintf("at %d/%d", o.At, o.Unit))
	}
	if o.Partial != "" {
		return strings.Join(append(words, "partial: "+o.Partial), ", ")
	}
	words = append(words, fmt.Sprintf("rank %d", o.Rank))
	flags := []struct {
		set  bool
		word string
	}{
		{o.Deleted, "deleted"}, {o.Final, "final"}, {o.OwnVersion, "own"}, {o.MayNotAdvance, "may not advance"},
		{o.AllowFuture, "any time"},
		{o.State == nil, "no state"}, {o.Before != nil, "before"},
	}
	for _, f := range flags {
		if f.set {
			words = append(words, f.word)
		}
	}
	if len(o.IgnoredPaths) > 0 {
		words = append(words, "without "+strings.Join(o.IgnoredPaths, " "))
	}
	return strings.Join(words, ", ")
}
