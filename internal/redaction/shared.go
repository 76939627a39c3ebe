package redaction

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// People tell which texts of a body name other persons than the one who is looked for.
type People struct {
	// Types are object types of persons: other objects of these types in the mirror are other persons.
	Types []string `json:"types,omitempty"`
	// Prefixes begin ids of persons: cus_.
	Prefixes []string `json:"prefixes,omitempty"`
	// Addresses: other e-mail addresses are other persons.
	Addresses bool `json:"addresses,omitempty"`

	// ids are those of the values that objects have.
	ids map[string]bool
}

// NameOf returns what the audit keeps of a value that is looked for: as NameOf, but of a number that is the id of no object a
// digest, since it may be a telephone number.
func (p *People) NameOf(value string) string {
	if isNumber(value) && !p.ids[value] {
		return digestOf(value)
	}
	return NameOf(value)
}

// objectTypesSQL finds the types that have an object of one of some ids.
const objectTypesSQL = `SELECT DISTINCT o.object_type, lower(o.object_id) FROM objects o WHERE o.source = $1 AND lower(o.object_id) = ANY($2::text[])`

// PeopleOf returns the people of some values: other ids of the same kind, and other addresses beside an address. It reads
// the keys of all objects of the sources where an id does not say its kind.
func PeopleOf(ctx context.Context, db querier, sources []int32, values []string) (*People, error) {
	p := &People{ids: map[string]bool{}}
	var ids []string
	for _, value := range values {
		switch prefix := idPrefix.FindString(value); {
		case isAddress(value):
			p.Addresses = true
		case prefix != "":
			p.Prefixes = append(p.Prefixes, strings.ToLower(prefix))
		default:
			ids = append(ids, compared(value))
		}
	}
	for _, source := range sources {
		if len(ids) == 0 {
			break
		}
		rows, err := db.Query(ctx, objectTypesSQL, source, ids)
		if err != nil {
			return nil, fmt.Errorf("read the types of objects: %w", err)
		}
		var kind, id string
		if _, err := pgx.ForEachRow(rows, []any{&kind, &id}, func() error {
			p.Types, p.ids[id] = append(p.Types, kind), true
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

// isAddress tells whether a text is an e-mail address, without proving it.
func isAddress(text string) bool {
	name, host, ok := strings.Cut(text, "@")
	return ok && name != "" && strings.Contains(host, ".") && !strings.Contains(host, "@")
}

// subject is what a body or state is about.
type subject struct {
	source                int32
	account, kind, object string
}

// isOwn tells whether the subject is a value that is looked for itself.
func (o *Order) isOwn(object string) bool {
	return object != "" && slices.ContainsFunc(o.Finds, func(f Find) bool { return f.mention() && f.is(object) })
}

// sharedSQL tells whether one of some ids is that of a person.
const sharedSQL = `
SELECT EXISTS (SELECT FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = ANY($3::text[]) AND o.object_id = ANY($4::text[]))`

// shared tells whether a body that mentions what is looked for names another person too, and is to be left.
func (o *Order) shared(ctx context.Context, db querier, s subject, body []byte) (bool, error) {
	if o.People == nil || slices.Contains(o.Include, s.kind) || o.isOwn(s.object) {
		return false, nil
	}
	others := o.otherNames(body)
	var ids []string
	for _, name := range others {
		prefix := idPrefix.FindString(name)
		isID := prefix != "" && strings.ContainsFunc(name[len(prefix):], isOfID)
		if o.People.Addresses && isAddress(name) || isID && slices.Contains(o.People.Prefixes, strings.ToLower(prefix)) {
			return true, nil
		}
		ids = append(ids, name)
	}
	if len(o.People.Types) == 0 || len(ids) == 0 {
		return false, nil
	}
	var found bool
	if err := db.QueryRow(ctx, sharedSQL, s.source, s.account, o.People.Types, ids).Scan(&found); err != nil {
		return false, fmt.Errorf("look for other persons: %w", err)
	}
	return found, nil
}

// isOfID tells the random part of an id from the name of a member, such as customer_id: one id of Stripe in twelve has no digit.
func isOfID(r rune) bool { return r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' }

// otherNames are the tokens of a body that may name a person, without those that are looked for.
func (o *Order) otherNames(body []byte) (names []string) {
	var text string
	for text = range readings(body) { // the last has no escapes
	}
	seen := map[string]bool{}
	tokens := slices.AppendSeq(globalID.FindAllString(text, -1), strings.FieldsFuncSeq(text, func(r rune) bool { return !isToken(r) }))
	for _, name := range tokens {
		name = strings.Trim(name, ".-")
		if len(name) < shortestMention || seen[name] {
			continue
		}
		seen[name] = true
		if !slices.ContainsFunc(o.Finds, func(f Find) bool { return f.is(name) }) {
			names = append(names, name)
		}
	}
	return names
}

func isToken(r rune) bool { return isWord(r) || strings.ContainsRune("@._+-", r) }
