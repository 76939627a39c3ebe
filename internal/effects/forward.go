package effects

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

// HasForwards reports whether a rule forwards the revisions of objects of a type. A nil set has
// none.
func (r *Rules) HasForwards(source, objectType string) bool {
	return len(r.forwardsOf(source, objectType)) > 0
}

// ForwardsAny reports whether a rule forwards revisions of objects. A nil set has none.
func (r *Rules) ForwardsAny() bool { return r != nil && len(r.forwards) > 0 }

func (r *Rules) forwardsOf(source, objectType string) (found []*rules.Rule) {
	if r == nil {
		return nil
	}
	for _, rule := range r.forwards {
		if rule.IsForwarded(source, objectType) {
			found = append(found, rule)
		}
	}
	return found
}

// Revision is a revision of an object to forward.
type Revision struct {
	// Source is the name of the source, Number its number.
	Source            string
	Number            int32
	Account, Type, ID string
	Revision, Event   int64
	Deleted           bool
	// Batch is the row of the outbox that announces it. An object that is announced again with the
	// same revision is forwarded again.
	Batch int64
	// Message is the message of the feed of changes, as JSON.
	Message json.RawMessage
}

// Forward returns the effects that forward a revision. The caller plans them one transaction at a
// time, because the last one about an object supersedes those that have not started.
func (r *Rules) Forward(v *Revision) (all []PlannedEffect, err error) {
	forwards := r.forwardsOf(v.Source, v.Type)
	if len(forwards) == 0 {
		return nil, nil
	}
	t := &Transition{On: rules.OnRevision, Source: v.Source, Number: v.Number, Account: v.Account, Type: v.Type,
		ID: v.ID, Deleted: v.Deleted, Event: Event{ID: v.Event}}
	stored, err := json.Marshal(storedTemplateData{New: nullIfNil(nil), Change: v.Message,
		Object: storedObject{v.Source, v.Account, v.Type, v.ID, v.Deleted}})
	if err != nil {
		return nil, fmt.Errorf("store a change to forward: %w", err)
	}
	for _, rule := range forwards {
		all = append(all, PlannedEffect{Rule: rule, Key: v.key(rule.Name), transition: t, templateData: stored})
	}
	return all, nil
}

// key returns a readable key that names the object, its revision and the row that announced it. A
// hash replaces a long object.
func (v *Revision) key(rule string) string {
	parts := []string{v.Source, v.Type, v.ID}
	if v.Account != "" {
		parts = []string{v.Source, v.Account, v.Type, v.ID}
	}
	for i := range parts {
		parts[i] = url.PathEscape(parts[i]) // so that different objects have different keys
	}
	object := strings.Join(parts, "/")
	if len(object) > maxKeyBytes/2 {
		sum := sha256.Sum256(fmt.Appendf(nil, "%q", []string{v.Account, v.Type, v.ID}))
		object = v.Source + "/" + hex.EncodeToString(sum[:])
	}
	return fmt.Sprintf("%s:%s:%d:%d", rule, object, v.Revision, v.Batch)
}
