package console

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/postern-gateway/postern/internal/admin"
)

// match is one of several things that a request may have meant: an object, or an event.
type match struct {
	Source     string  `json:"source"`
	Account    *string `json:"account"`
	ObjectType string  `json:"object_type"`
	ObjectID   string  `json:"object_id"`
	ID         string  `json:"id"`
}

// matchTable lists what a request may have meant, each with a link to the page of that one. It is
// nil for other problems.
func matchTable(r *request, p *admin.Problem) *table {
	if p.Matches == nil {
		return nil
	}
	raw, err := json.Marshal(p.Matches)
	var all []match
	if err != nil || json.Unmarshal(raw, &all) != nil {
		return nil
	}
	t := &table{Columns: []string{"Choose", "Source", "Account"}}
	for _, m := range all {
		account := cell{}
		if m.Account != nil {
			account = text(cmp.Or(*m.Account, "without an account"))
		}
		t.Rows = append(t.Rows, []cell{m.link(r), text(m.Source), account})
	}
	return t
}

// link leads to the requested page for this one. A change leads to the thing itself, where it can
// be requested again.
func (m *match) link(r *request) cell {
	name, value, own := "source", m.Source, codeLink(m.ID, path("events", m.ID))
	if m.Account != nil && m.ObjectID != "" {
		name, value = "account", *m.Account
		own = codeLink(m.ObjectType+" "+m.ObjectID, path("objects", m.Source, m.ObjectType, m.ObjectID))
	}
	q := url.Values{}
	if r.Method == http.MethodGet {
		q, own.Href = r.URL.Query(), r.URL.EscapedPath()
	}
	q.Set(name, value)
	own.Href += "?" + q.Encode()
	return own
}
