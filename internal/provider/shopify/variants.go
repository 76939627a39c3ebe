package shopify

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// MakeVariant makes another event from a sample or from any body. It has an id of its own, and
// updated_at (created_at if the object has no other) is the given time in whole seconds, as in
// Shopify. One harmless field contains the number of the event, so that each variant changes
// something visible.
func (Shopify) MakeVariant(s provider.Sample, n int, at time.Time, newObject bool) (provider.Sample, error) {
	token := provider.SampleToken(s.Type, n, at)
	s.ID = provider.SampleUUID(hex.EncodeToString(token[:]))
	body, err := provider.EditJSON(s.Body, "", func(object map[string]any) {
		for _, field := range []string{"updated_at", "created_at"} {
			if _, ok := object[field].(string); ok {
				object[field] = at.UTC().Truncate(time.Second).Format(time.RFC3339)
				break
			}
		}
		number(object, n)
		if newObject {
			renumber(object, n)
		}
	})
	s.Body = body
	return s, err
}

// number writes n into the first of these fields that the object has.
func number(object map[string]any, n int) {
	text := "event " + strconv.Itoa(n)
	for _, field := range []string{"note", "tags", "tracking_number"} {
		if _, ok := object[field]; ok {
			object[field] = text
			return
		}
	}
	if _, ok := object["available"]; ok {
		object["available"] = n
	}
}

// renumber appends n to the number that names the object, also in its GraphQL id.
func renumber(object map[string]any, n int) {
	field := "id"
	if _, ok := object[field]; !ok {
		field = "inventory_item_id"
	}
	old, ok := object[field].(json.Number)
	if !ok {
		return
	}
	// Shopify's ids have up to 19 digits. The last digits are replaced, so that an id still fits 64
	// bits.
	const suffixDigits = 6
	digits := old.String()
	if len(digits) > 18-suffixDigits {
		digits = digits[:18-suffixDigits]
	}
	number := digits + fmt.Sprintf("%0*s", suffixDigits, strconv.Itoa(n))
	object[field] = json.Number(number)
	if gid, ok := object["admin_graphql_api_id"].(string); ok {
		object["admin_graphql_api_id"] = strings.ReplaceAll(gid, old.String(), number)
	}
}
