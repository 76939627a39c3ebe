package shopify

import (
	"strconv"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
)

func textOf(v *canonical.Value, path ...string) string {
	s, _ := v.Get(path...).Text()
	return s
}

// idText is an id as text. Ids are numbers above 2^53, so the digits themselves are taken; a
// GraphQL id gives its number, so that both spellings name one object.
func idText(v *canonical.Value) string {
	switch v.Kind() {
	case canonical.Number:
		if n, ok := v.Int64(); ok {
			return strconv.FormatInt(n, 10)
		}
		return digits(string(v.Raw()))
	case canonical.String:
		s, _ := v.Text()
		if strings.HasPrefix(s, gidPrefix) {
			return gidNumber(s)
		}
		return s
	}
	return ""
}

// digits is s if it is a plain positive integer, else "".
func digits(s string) string {
	if s == "" || s[0] == '0' || strings.Trim(s, "0123456789") != "" {
		return ""
	}
	return s
}

// plainNumber tells whether an id is a number, or several joined.
func plainNumber(id string) bool {
	for part := range strings.SplitSeq(id, ":") {
		if digits(part) == "" {
			return false
		}
	}
	return true
}

const gidPrefix = "gid://shopify/"

// gidNoun is the type that a GraphQL id names: "Order" of gid://shopify/Order/1.
func gidNoun(gid string) string {
	rest, ok := strings.CutPrefix(gid, gidPrefix)
	if !ok {
		return ""
	}
	noun, _, _ := strings.Cut(rest, "/")
	return noun
}

// gidNumber is the last part of a GraphQL id; "" where the id has a query, since then the number
// alone names nothing.
func gidNumber(gid string) string {
	rest, ok := strings.CutPrefix(gid, gidPrefix)
	if !ok || strings.Contains(rest, "?") {
		return ""
	}
	_, number, _ := strings.Cut(rest, "/")
	return number
}

// bodyID is the id of a body, or else the number of its GraphQL id.
func bodyID(root *canonical.Value) string {
	if id := idText(root.Get("id")); id != "" {
		return id
	}
	return idText(root.Get("admin_graphql_api_id"))
}

// nounOf is the singular of a topic's subject: "company" of companies/create.
func nounOf(topic string) string {
	subject, _, _ := strings.Cut(topic, "/")
	subject, _, _ = strings.Cut(subject, ".")
	if stem, ok := strings.CutSuffix(subject, "ies"); ok {
		return stem + "y"
	}
	return strings.TrimSuffix(subject, "s")
}
