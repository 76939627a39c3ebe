package stripe

import (
	_ "embed" // for api_docs.md
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
)

// apiText are facts about the API.
//
//go:embed api_docs.md
var apiText string

var _ provider.APIDocumented = Stripe{}

// notRead are the mirrored types that no GET reads, with the reason for each.
var notRead = map[string]string{
	"discount": "it is read through its customer or subscription, whose discount may be another one by then",
	"entitlements.active_entitlement_summary": "it has no GET; the list of its members has another format",
	"billing_portal.session":                  "it has no GET",
}

// APIDocs describes what Postern reads of Stripe's API.
func (s Stripe) APIDocs() provider.APIDocs {
	d := provider.APIDocs{Paths: "`{owner}` is the object that it belongs to.", NotRead: notRead, Text: apiText}
	for _, name := range s.ObjectTypes() {
		if t := (provider.ReadableType{Type: name, List: lists[name].describe(), Object: describeGet(name)}); t.List+
			t.Object != "" {
			d.Types = append(d.Types, t)
		}
	}
	return d
}

// describe returns where the objects are listed.
func (l listing) describe() string {
	var all []string
	for _, p := range l {
		path, _, _ := strings.Cut(p.path, "?")
		text := "`" + path + "`"
		perOwner, _, _ := strings.Cut(p.perOwner, "?")
		switch {
		case p.testOnly && p.perOwner != "":
			text = "in test mode also by test clock"
		case p.within != "":
			text = "`" + p.within + "` in " + text + ", and `" + perOwner + "` if there are more than ten"
		case p.perOwner != "":
			text = "`" + perOwner + "` for each of " + text
		case p.singleObject:
			text += " (one object)"
		}
		if len(all) == 0 || all[len(all)-1] != text {
			all = append(all, text)
		}
	}
	return strings.Join(all, "; ")
}

// describeGet returns the paths that read one object.
func describeGet(objectType string) string {
	var all []string
	for _, o := range below[objectType] {
		all = append(all, "`"+o.path+"`")
	}
	if path := readPath(objectType); path != "" {
		all = append(all, "`"+strings.NewReplacer("{a}", "{account}", "{b}", "{id}").Replace(path)+"`")
	}
	return strings.Join(all, "; ")
}
