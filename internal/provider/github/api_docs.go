package github

import (
	_ "embed" // for api_docs.md
	"regexp"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
)

// apiText are facts about the API.
//
//go:embed api_docs.md
var apiText string

var _ provider.APIDocumented = GitHub{}

// notRead are the mirrored types that no GET reads, or not in the format of webhooks, with the
// reason for each.
var notRead = map[string]string{
	"pull_request_review": "the API has its state in capitals, and without `updated_at`",
	"ref":                 builtFromEvent,
	"star":                builtFromEvent,
	"member":              builtFromEvent,
	"membership":          builtFromEvent,
	"team_repository":     builtFromEvent,
	"team": "the API reads it by the names of the organization and the team, which its bodies do not " +
		"contain",
	"installation": "only the app itself reads it, with a key that expires after ten minutes",
}

const builtFromEvent = "the mirror builds it from several members of an event, and the API has no such object"

// APIDocs describes what Postern reads of GitHub's API.
func (g GitHub) APIDocs() provider.APIDocs {
	d := provider.APIDocs{Paths: "Paths are below `/repos/{owner}/{name}`.", NotRead: notRead, Text: apiText}
	for _, name := range g.ObjectTypes() {
		at, ok := gets[name]
		if !ok {
			continue
		}
		t := provider.ReadableType{Type: name, Object: path(at.describe())}
		if l, ok := lists[name]; ok {
			t.List = path(l.path)
			if l.byChange {
				t.Changed = "by `since`"
			}
		}
		d.Types = append(d.Types, t)
	}
	return d
}

// path describes a path below a repository.
func path(below string) string {
	if below == "" {
		return "the repository"
	}
	return "`" + below + "`"
}

var (
	numberIn = regexp.MustCompile(`\[1-9\]\\d\*`)
	nameIn   = regexp.MustCompile(`\[\^[^\]]*\]\+`)
)

// describe returns the address of an object below its repository.
func (at objectPath) describe() string {
	path := nameIn.ReplaceAllString(numberIn.ReplaceAllString(at.below.String(), "{number}"), "{name}")
	return strings.Trim(path, "^$")
}
