package console

import (
	"context"
	"net/url"
	"strings"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/redaction"
)

var auditList = list[operations.AuditParams, adminauth.AuditEntry]{
	title: "Audit", text: "Every change by an operator, the newest first: who, from where, what and why.",
	command: "audit list", api: "/api/v1/audit",
	main: []string{"actor", "action", "target", "run", "since", "until"},
	presets: []preset{{"runs", "?action=runs"}, {"replays", "?action=replay"}, {"effects", "?action=effects"},
		{"rejections", "?action=rejections"}, {"tokens", "?action=token"}, {"console", "?action=console"},
		{"last day", "?since=24h"}},
	columns: []string{"At", "Actor", "Action", "Target", "Reason", "From", "Run"},
	row:     auditRow,
	read:    operations.Audit,
	empty:   "No entry matches the filter. An entry appears here with each change, and with each login to the console.",
	extra: func(context.Context, *request, *operations.AuditParams) ([]block, error) {
		return []block{{Presets: []cell{link("Redactions", path("redactions"))}}}, nil
	},
}

func auditRow(r *request, e *adminauth.AuditEntry) []cell {
	actor := text(e.Actor)
	if actor.Sub = viaText[e.Via]; e.Action == adminauth.LoginDenied {
		actor.Sub = "with a wrong token"
	}
	from := code(e.Address)
	from.Sub = visible(e.DatabaseUser)
	run := cell{}
	if e.Run != 0 {
		run = codeLink(id(e.Run), runPath(e.Run))
	}
	return []cell{r.shortTime(e.At.Time), actor, text(e.Action), targetCell(e.Target), shorten(e.Reason, 120), from,
		run}
}

// viaText says how the name of an actor is known.
var viaText = map[adminauth.Via]string{adminauth.ViaToken: "by its token", adminauth.ViaConsole: "by a session of " +
	"the console", adminauth.ViaLoopback: "no token was required", adminauth.ViaCommand: "as the command reported"}

// targetCell links the changed thing where it has a page.
func targetCell(target string) cell {
	c := shorten(target, 90)
	kind, rest, _ := strings.Cut(target, " ")
	first, _, _ := strings.Cut(rest, ";")
	switch kind {
	case "run":
		c.Href = path("runs", first)
	case "schedule":
		c.Href = path("schedules", rest)
	case "effect":
		if !strings.Contains(first, ",") {
			c.Href = path("effects", first)
		}
	}
	if values, err := url.ParseQuery(target); err == nil && values.Get("object_id") != "" && values.Get("type") != "" {
		c = objectOfTarget(values)
	}
	return c
}

func objectOfTarget(v url.Values) cell {
	c := shorten(v.Get("object_id"), 48)
	c.Code, c.Sub = true, visible(v.Get("type"))
	c.Href = objectPath(v.Get("source"), v.Get("account"), v.Get("type"), v.Get("object_id"))
	return c
}

// auditLink leads to the audit entries whose target contains an id. Most targets contain it
// escaped.
func auditLink(id string) cell {
	return link("audit entries", query(path("audit"), "target", url.QueryEscape(id)))
}

// auditBlock shows the changes of one thing.
func auditBlock(r *request, all []adminauth.AuditEntry) block {
	return block{ID: "audit", Heading: "Audit", Table: auditList.embed(r, all, "")}
}

var redactionList = list[operations.Page, redaction.AuditEntry]{
	title: "Redactions", text: "Personal data that was removed on purpose, the newest first. A redaction is " +
		"requested with the command postern redact.",
	command: "redact list", api: "/api/v1/redactions",
	columns: []string{"Run", "Began", "Ended", "Actor", "Reason", "Request", "Events", "Objects", "Conflicts",
		"Rejections"},
	row:  redactionRow,
	read: operations.ListPages(redaction.List),
	empty: "Nothing was redacted. The page docs/how-to/erase-a-customer.md describes how to remove the data of a " +
		"customer.",
}

func redactionRow(r *request, e *redaction.AuditEntry) []cell {
	request := cell{}
	if e.RequestedBy != 0 {
		request = codeLink("event", eventPath(e.RequestedBy))
	}
	return []cell{codeLink(id(e.Run), runPath(e.Run)), r.at(e.BeganAt), r.at(e.EndedAt), text(e.Actor),
		shorten(e.Reason, 120), request, number(e.Events), number(e.Objects), number(e.Conflicts), number(e.Rejections)}
}
