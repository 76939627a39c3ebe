package redaction

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/postgres"
)

// PersonIdentifiers says which texts of a body identify a person.
type PersonIdentifiers struct {
	// Types are object types of persons: other objects of these types in the mirror are other
	// persons.
	Types []string `json:"types,omitempty"`
	// Prefixes are prefixes of ids of persons: cus_.
	Prefixes []string `json:"prefixes,omitempty"`
	// Addresses says that other e-mail addresses are other persons.
	Addresses bool `json:"addresses,omitempty"`

	// objectIDs are the searched values that are ids of objects.
	objectIDs map[string]bool
}

// AuditName returns a searched value in the form that the audit stores. It is like the function
// AuditName. A number that is not the id of an object becomes a digest too, since it may be a
// telephone number.
func (p *PersonIdentifiers) AuditName(value string) string {
	if isNumber(value) && !p.objectIDs[value] {
		return digestOf(value)
	}
	return AuditName(value)
}

// objectTypesSQL finds the types of the objects with some ids.
const objectTypesSQL = `SELECT DISTINCT o.object_type, lower(o.object_id) FROM objects o WHERE o.source = $1
	AND lower(o.object_id) = ANY($2::text[])`

// PersonIdentifiersOf returns the identifiers of the same kinds as the values: ids of the same
// types, and e-mail addresses if one of the values is an address. For ids without a prefix it reads
// the keys of all objects of the sources.
func PersonIdentifiersOf(ctx context.Context, db querier, sources []int32, values []string) (*PersonIdentifiers,
	error) {
	p := &PersonIdentifiers{objectIDs: map[string]bool{}}
	var ids []string
	for _, value := range values {
		switch prefix := idPrefix.FindString(value); {
		case isAddress(value):
			p.Addresses = true
		case prefix != "":
			p.Prefixes = append(p.Prefixes, strings.ToLower(prefix))
		default:
			ids = append(ids, normalize(value))
		}
	}
	for _, source := range sources {
		if len(ids) == 0 {
			break
		}
		var kind, id string
		if err := postgres.ForEach(ctx, db, objectTypesSQL, []any{source, ids}, []any{&kind, &id}, func() error {
			p.Types, p.objectIDs[id] = append(p.Types, kind), true
			return nil
		}); err != nil {
			return nil, fmt.Errorf("read the types of objects: %w", err)
		}
	}
	for _, list := range []*[]string{&p.Types, &p.Prefixes} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return p, nil
}

// isAddress reports whether a text looks like an e-mail address.
func isAddress(text string) bool {
	name, host, ok := strings.Cut(text, "@")
	return ok && name != "" && strings.Contains(host, ".") && !strings.Contains(host, "@")
}

// subject is what a body or state is about.
type subject struct {
	source                int32
	account, kind, object string
}

// isSearched reports whether the object's id is one of the searched values.
func (o *Params) isSearched(object string) bool {
	return object != "" && slices.ContainsFunc(o.Matchers, func(f ValueMatcher) bool {
		return f.isMention() && f.equals(object)
	})
}

// sharedSQL reports whether one of the ids belongs to a person.
const sharedSQL = `
SELECT EXISTS (SELECT FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = ANY($3::text[])
	AND o.object_id = ANY($4::text[]))`

// namesOthers reports whether a matching body names another person too, and therefore stays.
func (o *Params) namesOthers(ctx context.Context, db querier, s subject, body []byte) (bool, error) {
	if o.Persons == nil || slices.Contains(o.Include, s.kind) || o.isSearched(s.object) {
		return false, nil
	}
	others := o.otherNames(body)
	var ids []string
	for _, name := range others {
		prefix := idPrefix.FindString(name)
		isID := prefix != "" && strings.ContainsFunc(name[len(prefix):], isIDChar)
		if o.Persons.Addresses && isAddress(name) || isID &&
			slices.Contains(o.Persons.Prefixes, strings.ToLower(prefix)) {
			return true, nil
		}
		ids = append(ids, name)
	}
	if len(o.Persons.Types) == 0 || len(ids) == 0 {
		return false, nil
	}
	var found bool
	if err := db.QueryRow(ctx, sharedSQL, s.source, s.account, o.Persons.Types, ids).Scan(&found); err != nil {
		return false, fmt.Errorf("search other persons: %w", err)
	}
	return found, nil
}

// isIDChar distinguishes the random part of an id from a member name, such as customer_id. One
// Stripe id in twelve has no digit, so upper case letters count as well.
func isIDChar(r rune) bool { return r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' }

// otherNames returns the tokens of a body that may name a person, without the searched values.
func (o *Params) otherNames(body []byte) (names []string) {
	var text string
	for text = range decodings(body) { // the last decoding has no escapes
	}
	seen := map[string]bool{}
	tokens := slices.AppendSeq(globalID.FindAllString(text, -1),
		strings.FieldsFuncSeq(text, func(r rune) bool { return !isToken(r) }))
	for _, name := range tokens {
		name = strings.Trim(name, ".-")
		if len(name) < minMentionLength || seen[name] {
			continue
		}
		seen[name] = true
		if !slices.ContainsFunc(o.Matchers, func(f ValueMatcher) bool { return f.equals(name) }) {
			names = append(names, name)
		}
	}
	return names
}

func isToken(r rune) bool { return isWord(r) || strings.ContainsRune("@._+-", r) }
