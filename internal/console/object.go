package console

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/versioning"
)

// objectName returns the object in the path of a page. The account is in the query, where it is
// necessary.
func (r *request) objectName() operations.ObjectName {
	name := operations.ObjectName{Source: r.PathValue("source"), Type: r.PathValue("type"), ID: r.PathValue("id")}
	if q := r.URL.Query(); q.Has("account") {
		account := q.Get("account")
		name.Account = &account
	}
	return name
}

// objectPage shows one object of the mirror.
func objectPage(ctx context.Context, r *request) (*view, error) {
	name := r.objectName()
	o, err := operations.Object(ctx, r.c.Pages, name)
	if errors.Is(err, events.ErrNotFound) {
		return absentObject(ctx, r, name, err)
	}
	if err != nil {
		return nil, err
	}
	if r.URL.Query().Has("download") {
		return nil, &download{name: "object-" + o.ObjectType + "-" + o.ObjectID + ".json", body: o.State}
	}
	v := &view{Kind: visible(o.ObjectType + " of source " + o.Source), Title: visible(o.ObjectID), Lead: objectFlags(o),
		Text: objectSentence(r, o), Notes: objectNotes(r, o)}
	pending, err := operations.ObjectRefetch(ctx, r.c.Pages, operations.ObjectKey{Source: o.Source,
		Account: &o.Account, Type: o.ObjectType, ObjectID: o.ObjectID})
	if err != nil {
		return nil, err
	}
	v.Blocks = append(v.Blocks, block{Actions: objectActions(r, o)}, objectFields(r, o))
	if pending != nil {
		v.Blocks = append(v.Blocks, r.refetchBlock(pending))
	}
	name.Account = &o.Account
	for _, read := range []func(context.Context, *request, operations.ObjectName) ([]block, error){historyBlocks,
		objectEffects, objectDrift} {
		blocks, err := read(ctx, r, name)
		if err != nil {
			return nil, err
		}
		v.Blocks = append(v.Blocks, blocks...)
	}
	if !o.Redacted {
		v.Blocks = append(v.Blocks, block{ID: "state", Heading: "State", Document: newDocument(o.State,
			r.URL.EscapedPath()+"?"+encode(map[string]string{"account": o.Account, "download": ""}))})
	}
	return v, nil
}

// objectFlags are the flags of an object as badges.
func objectFlags(o *versioning.View) (all []cell) {
	add := func(is bool, label, tone string) {
		if is {
			all = append(all, yes(is, label, tone))
		}
	}
	add(o.Deleted, "deleted", "quiet")
	add(o.Ambiguous, "ambiguous", "warning")
	add(!o.RefetchAfter.IsZero(), "refetch pending", "info")
	add(o.Redacted, "redacted", "quiet")
	add(o.RuleVersion < versioning.RuleVersion, "older rule", "warning")
	add(!o.OverwrittenAt.IsZero(), "overwritten", "info")
	return all
}

// objectSentence tells where the shown state comes from.
func objectSentence(r *request, o *versioning.View) string {
	s := fmt.Sprintf("This is revision %s, stored at %s.", groupDigits(o.Revision), r.at(o.UpdatedAt).Text)
	if o.Version != versioning.NoVersion {
		s += " Its state is " + versionSentence(r, o.Version) + "."
	}
	return s
}

// versionSentence says which version of an object it is.
func versionSentence(r *request, v versioning.Version) string {
	s := fmt.Sprintf("the provider's version %d", v.At)
	if v.IsTime() {
		s = "the provider's state of " + r.time(time.UnixMicro(v.At)).Text
	}
	if v.Seen != 0 {
		s += ", which a refetch that began at " + r.time(time.UnixMicro(v.Seen)).Text + " read"
	}
	if v.Final {
		s += ", when it was deleted permanently"
	}
	return s
}

// versionTime shows a version: its time as show does, and its other parts in small letters.
func versionTime(v versioning.Version, show func(time.Time) cell) cell {
	if v == versioning.NoVersion {
		return cell{}
	}
	c := code(fmt.Sprint(v.At))
	if v.IsTime() {
		c = show(time.UnixMicro(v.At))
	}
	var parts []string
	if v.Final {
		parts = append(parts, "final")
	}
	if v.Seen != 0 {
		parts = append(parts, "seen "+show(time.UnixMicro(v.Seen)).Text)
	}
	if v.Rank != 0 {
		parts = append(parts, fmt.Sprintf("rank %d", v.Rank))
	}
	c.Sub = strings.Join(parts, ", ")
	return c
}

// objectNotes explain the flags of an object.
func objectNotes(r *request, o *versioning.View) (all []note) {
	add := func(is bool, tone, text string) {
		if is {
			all = append(all, note{Tone: tone, Text: visible(text)})
		}
	}
	add(o.Deleted && !o.Version.Final, "info", "The provider deleted this object. The mirror keeps its last state.")
	add(o.Deleted && o.Version.Final, "info", "The provider deleted this object permanently and does not use its id "+
		"again. No later event changes it.")
	add(o.Ambiguous, "warning", "Different states have the same version, and their order is not known. The mirror "+
		"shows one of them by a fixed rule until a newer state arrives. Request a refetch to decide it now.")
	add(!o.RefetchAfter.IsZero(), "info", "A refetch is pending: a processor reads the object from the provider's API "+
		"after "+r.at(o.RefetchAfter).Text+".")
	add(!o.OverwrittenAt.IsZero(), "info", "An operator overwrote this object from the provider at "+
		r.at(o.OverwrittenAt).Text+". Events that were received before that time cannot change it any more.")
	add(o.Redacted, "info", "The state was redacted. A newer event or a refetch stores a state again.")
	add(o.Version == versioning.NoVersion, "info", "No event contained the complete object so far. Request a "+
		"refetch to get it.")
	add(o.Sanitized, "info", "The state differs from the body of the event in texts that PostgreSQL cannot store. The "+
		"event keeps the exact bytes.")
	if o.RuleVersion < versioning.RuleVersion {
		rebuild := link("Rebuild the objects of this type", query(path("runs", "new", "rebuild"), "source", o.Source,
			"type", o.ObjectType))
		all = append(all, note{Tone: "warning", Link: &rebuild, Text: fmt.Sprintf("Version %d of the rule wrote this "+
			"state, and the current one is version %d. A rebuild applies the current rule.", o.RuleVersion,
			versioning.RuleVersion)})
	}
	return all
}

func objectActions(r *request, o *versioning.View) []action {
	self := r.URL.RequestURI()
	return []action{
		r.objectForm(o, action{Label: "Request a refetch", Text: "A processor reads the object from the provider's " +
			"API. The response changes the mirror only if it is newer.", Path: "/api/v1/refetches", Reason: "optional",
			Then: self}),
		{Label: "Replay its events…", Text: "Shows how many events would be applied again, and what would change.",
			Href: query(path("runs", "new", "replay"), "source", o.Source, "account", o.Account, "object_type",
				o.ObjectType, "object_id", o.ObjectID)},
		r.objectForm(o, action{Label: "Overwrite from the provider", Danger: true, Text: "A run reads the object " +
			"from the provider's API. That state wins over the stored one, whatever their versions are. Events that " +
			"were received before do not count any more. This cannot be undone.", Path: "/api/v1/objects/overwrite",
			Reason: "required", Then: Prefix + "runs/{run}"}),
	}
}

// absentObject is the page of an object that is not in the mirror, but whose refetch is requested.
// Without a request it is notFound.
func absentObject(ctx context.Context, r *request, name operations.ObjectName, notFound error) (*view, error) {
	pending, err := operations.ObjectRefetch(ctx, r.c.Pages, operations.ObjectKey{Source: name.Source,
		Account: name.Account, Type: name.Type, ObjectID: name.ID})
	if err != nil || pending == nil {
		return nil, notFound
	}
	return &view{Kind: visible(name.Type + " of source " + name.Source), Title: visible(name.ID),
		Text:   "The object is not in the mirror. If the provider has it, the refetch stores it.",
		Blocks: []block{r.refetchBlock(pending)}}, nil
}

// refetchBlock shows the refetch request of an object.
func (r *request) refetchBlock(q *refetch.Request) block {
	requested := []cell{r.at(q.RequestedAt)}
	if q.RequestedBy != "" {
		requested = append(requested, text("by "+q.RequestedBy))
	}
	fields := []field{{"Reason", []cell{text(label(q.Reason))}}, {"Requested", requested},
		{"Next attempt", []cell{r.refetchDue(q)}}, {"Failed attempts", []cell{text(groupDigits(int64(q.Attempts)))}},
		{"Last error", []cell{text(q.Error)}}}
	cancel := r.objectForm(&versioning.View{Source: q.Source, Account: q.Account, ObjectType: q.ObjectType,
		ObjectID: q.ObjectID}, action{Label: "Cancel the refetch", Path: "/api/v1/refetches/cancel", Reason: "optional",
		Text: "An attempt that is in progress continues. The mirror requests a refetch again if it needs one."})
	return block{ID: "refetch", Heading: "Refetch request", Fields: fields, Actions: []action{cancel}}
}

// objectForm completes an action on an object. The account is sent also if it is empty, since
// another account may have an object of the same id.
func (r *request) objectForm(o *versioning.View, a action) action {
	a.Values = []value{{"source", o.Source}, {"object_type", o.ObjectType}, {"object_id", o.ObjectID}}
	if a.Empty = []string{"account"}; o.Account != "" {
		a.Values, a.Empty = append(a.Values, value{"account", o.Account}), nil
	}
	return r.form(a)
}

func objectFields(r *request, o *versioning.View) block {
	version := text("none yet")
	if o.Version != versioning.NoVersion {
		version = versionTime(o.Version, r.time)
	}
	selection := []string{"source", o.Source, "account", o.Account, "object_type", o.ObjectType, "object_id",
		o.ObjectID}
	return block{ID: "object", Fields: []field{{"Source", []cell{link(o.Source, path("sources", o.Source))}},
		{"Type", []cell{link(o.ObjectType, query(path("objects"), "source", o.Source, "type", o.ObjectType))}},
		{"Id", []cell{code(o.ObjectID)}}, {"Account", []cell{code(o.Account)}}, {"Version", []cell{version}},
		{"Revision", []cell{text(groupDigits(o.Revision))}}, {"Decided by", []cell{r.eventCell(o.LastEventID)}},
		{"Rule", []cell{text(fmt.Sprintf("version %d", o.RuleVersion))}}, {"Created", []cell{r.at(o.CreatedAt)}},
		{"Updated", []cell{r.at(o.UpdatedAt)}}, {"See also", []cell{link("its events", query(path("events"),
			selection...)), link("its outcomes", query(path("outcomes"), selection...)), link("its last change",
			query(path("objects", o.Source, o.ObjectType, o.ObjectID, "diff"), "account", o.Account)),
			auditLink(o.ObjectID)}}}}
}

// shownEffects is how many effects of an object its page shows.
const shownEffects = 25

// objectEffects shows the newest effects of an object.
func objectEffects(ctx context.Context, r *request, name operations.ObjectName) ([]block, error) {
	found, err := operations.Effects(ctx, r.c.Pages, operations.EffectParams{Source: name.Source, Account: name.Account,
		Type: name.Type, ObjectID: name.ID, Page: operations.Page{Limit: new(shownEffects)}})
	if err != nil || len(found.Items) == 0 {
		return nil, err
	}
	b := effectBlock(r, found.Items)
	if found.Next != "" {
		b.Text = "The newest ones are here."
		b.Table.More = query(path("effects"), "source", name.Source, "type", name.Type, "object_id", name.ID)
		b.Table.MoreLabel = "Show all effects of the object"
	}
	return []block{b}, nil
}
