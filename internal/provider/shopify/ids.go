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

// idText returns an id as text. Ids may be numbers above 2^53, so it keeps their digits. For a
// GraphQL id it returns the number, so that both spellings name one object.
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

// digits returns s if it is a plain positive integer, or else "".
func digits(s string) string {
	if s == "" || s[0] == '0' || strings.Trim(s, "0123456789") != "" {
		return ""
	}
	return s
}

// plainNumber reports whether an id is a number, or several numbers joined by colons.
func plainNumber(id string) bool {
	for part := range strings.SplitSeq(id, ":") {
		if digits(part) == "" {
			return false
		}
	}
	return true
}

const gidPrefix = "gid://shopify/"

// gidNoun returns the type in a GraphQL id: "Order" of gid://shopify/Order/1.
func gidNoun(gid string) string {
	rest, ok := strings.CutPrefix(gid, gidPrefix)
	if !ok {
		return ""
	}
	noun, _, _ := strings.Cut(rest, "/")
	return noun
}

// gidNumber returns the last part of a GraphQL id. It returns "" if the id has a query, because
// then the number alone does not identify the object.
func gidNumber(gid string) string {
	rest, ok := strings.CutPrefix(gid, gidPrefix)
	if !ok || strings.Contains(rest, "?") {
		return ""
	}
	_, number, _ := strings.Cut(rest, "/")
	return number
}

// bodyID returns the id in a body, or else the number in its GraphQL id.
func bodyID(root *canonical.Value) string {
	if id := idText(root.Get("id")); id != "" {
		return id
	}
	return idText(root.Get("admin_graphql_api_id"))
}

// nounOf returns the singular of a topic's subject: "company" of companies/create.
func nounOf(topic string) string {
	subject, _, _ := strings.Cut(topic, "/")
	subject, _, _ = strings.Cut(subject, ".")
	if stem, ok := strings.CutSuffix(subject, "ies"); ok {
		return stem + "y"
	}
	return strings.TrimSuffix(subject, "s")
}
