package console

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
)

// sourcePages are the pages of sources.
func (c *Console) sourcePages() map[string]page {
	return map[string]page{"sources": withParams(sourcesPage, "cursor"), "sources/{name}": withParams(sourcePage),
		"source-types": typeList.page()}
}

func sourcesPage(ctx context.Context, r *request) (*view, error) {
	b, err := r.sourcesBlock(ctx, r.texts["cursor"])
	if err != nil {
		return nil, err
	}
	b.Heading, b.Presets = "", []cell{link("Event types of all sources", path("source-types"))}
	return &view{Title: "Sources", Text: "The sources of the log, and those in the configuration of this process.",
		Blocks: []block{b}}, nil
}

// sourcesBlock lists the sources, by name.
func (r *request) sourcesBlock(ctx context.Context, cursor string) (block, error) {
	found, err := operations.Sources(ctx, r.c.Pages, r.c.endpoints(), operations.Page{Cursor: cursor})
	if err != nil {
		return block{}, err
	}
	t := &table{Columns: sourceColumns, Rows: rows(r, found.Items, sourceRow), MoreLabel: "Show more",
		Empty: noSource, Curl: curlLine(r, "/api/v1/sources", nil)}
	if found.Next != "" {
		t.More = query(path("sources"), "cursor", found.Next)
	}
	return block{ID: "sources", Heading: "Sources", Table: t}, nil
}

const noSource = "There is no source. Add one below sources in the configuration file."

// shownSources is how many sources the overview lists.
const shownSources = 20

// activeSources lists sources with events: first those with silent types, then those with the
// newest events.
func (r *request) activeSources(ctx context.Context) (block, error) {
	found, err := operations.Sources(ctx, r.c.Pages, r.c.endpoints(), operations.Page{Limit: new(events.MaxLimit)})
	if err != nil {
		return block{}, err
	}
	active := slices.DeleteFunc(slices.Clone(found.Items), func(s operations.Source) bool {
		return s.LastEventAt.IsZero()
	})
	slices.SortStableFunc(active, func(a, b operations.Source) int {
		return cmp.Or(cmp.Compare(min(b.SilentTypes, 1), min(a.SilentTypes, 1)),
			b.LastEventAt.Compare(a.LastEventAt.Time))
	})
	b := block{ID: "sources", Heading: "Sources", Table: &table{Columns: sourceColumns, Curl: curlLine(r,
		"/api/v1/sources", nil), Rows: rows(r, active[:min(len(active), shownSources)], sourceRow)}}
	all := link("all sources", path("sources"))
	if len(found.Items) == 0 {
		b.Table.Empty = noSource
	}
	if found.Next != "" {
		b.Notes = append(b.Notes, note{Tone: "info", Link: &all, Text: fmt.Sprintf("The list covers only the first %s "+
			"sources by name.", groupDigits(events.MaxLimit))})
	}
	if more := len(active) - shownSources; more > 0 {
		b.Notes = append(b.Notes, note{Tone: "info", Text: plural(more, "other source has", "other sources have") +
			" had events.", Link: &all})
	}
	if without := len(found.Items) - len(active); without > 0 {
		b.Notes = append(b.Notes, note{Tone: "info", Text: plural(without, "source has", "sources have") +
			" had no event yet. Processes report new events once a minute.", Link: &all})
	}
	return b, nil
}

var sourceColumns = []string{"Source", "Provider", "Last event", "State", "Secrets", "Endpoint"}

func sourceRow(r *request, s *operations.Source) []cell {
	secrets, endpoint := cell{}, cell{}
	if s.Settings != nil {
		secrets, endpoint = number(len(s.Settings.Secrets)), code(s.Settings.Endpoint)
	}
	return []cell{link(s.Name, path("sources", s.Name)), text(s.Provider), r.ageCell(s.LastEventAt), sourceState(s),
		secrets, endpoint}
}

func sourceState(s *operations.Source) cell {
	switch {
	case s.SilentTypes > 0:
		return cell{Text: fmt.Sprintf("silent types: %d", s.SilentTypes), Badge: true, Tone: "warning"}
	case !s.Configured:
		return cell{Text: "not configured here", Badge: true}
	case s.LastEventAt.IsZero():
		return cell{Text: "no event reported", Badge: true}
	}
	return cell{Text: "active", Badge: true, Tone: "good"}
}

// sourcePage shows one source: settings, secrets, event types, activity and completeness.
func sourcePage(ctx context.Context, r *request) (*view, error) {
	name := r.PathValue("name")
	s, err := operations.ShowSource(ctx, r.c.Pages, r.c.endpoints(), operations.SourceName{Name: name})
	if err != nil {
		return nil, err
	}
	v := &view{Kind: "Source of provider " + s.Provider, Title: s.Name, Lead: []cell{sourceState(&s.Source)}}
	if !s.Configured {
		v.Notes = []note{{Tone: "info", Text: "This process does not have the source in its configuration. The " +
			"console of a gateway shows its settings."}}
	}
	v.Blocks = []block{{Fields: []field{
		{"Events", []cell{link("all its events", query(path("events"), "source", name))}},
		{"Rejections", []cell{link("its rejections", query(path("rejections"), "source", name))}},
		{"Objects", []cell{link("its objects", query(path("objects"), "source", name))}},
		{"Registered", []cell{r.at(s.AddedAt)}}, {"Last event", []cell{r.at(s.LastEventAt)}}}}}
	if !s.AddedAt.IsZero() {
		charts, err := r.activityCharts(ctx, name, "24h")
		if err != nil {
			return nil, err
		}
		v.Blocks = append(v.Blocks, charts...)
	}
	if s.Configured || len(s.SecretUses) > 0 {
		v.Blocks = append(v.Blocks, r.secretsBlock(s))
	}
	if !s.AddedAt.IsZero() {
		types, err := r.typesBlock(ctx, name)
		if err != nil {
			return nil, err
		}
		v.Blocks = append(v.Blocks, types)
	}
	if len(s.Watermarks) > 0 {
		v.Blocks = append(v.Blocks, r.completenessBlock(s))
	}
	if s.Settings != nil {
		v.Blocks = append(v.Blocks, settingsBlock(s.Settings))
	}
	return v, nil
}

func settingsBlock(set *operations.SourceSettings) block {
	return block{ID: "settings", Heading: "Settings in this process", Fields: []field{
		{"Endpoint", []cell{code(set.Endpoint)}},
		{"Largest body", []cell{text(bytesText(set.MaxBodyBytes))}},
		{"Rate limit", []cell{text(rateText(set))}},
		{"Senders", []cell{text(cmp.Or(strings.Join(set.AllowFrom, ", "), "any address"))}},
		{"Account", []cell{text(cmp.Or(set.Account, strings.Join(set.Accounts, ", "), "any"))}},
		{"Provider's API", []cell{text(map[bool]string{true: "configured", false: "not configured"}[set.API])}}}}
}

// secretTones are the colours of the secrets in their chart.
var secretTones = []string{"good", "info", "warning", ""}

// secretsBlock shows which secrets verify the deliveries of a source, and which one can be removed.
func (r *request) secretsBlock(s *operations.SourceDetail) block {
	b := block{ID: "secrets", Heading: "Secrets", Table: &table{Columns: []string{"Secret", "Share of 24 h", "Verified",
		"Last verified", "Kind", "Variable or file", "Changed"},
		Empty: "The source has no signing secret. Its provider verifies deliveries in another way."}}
	uses, tones := map[string]*activity.SecretUse{}, map[string]string{}
	var strip []series
	for i := range s.SecretUses {
		u := &s.SecretUses[i]
		uses[u.Secret], tones[u.Secret] = u, secretTones[min(i, len(secretTones)-1)]
		strip = append(strip, series{label: visible(u.Secret), tone: tones[u.Secret], values: u.Hours})
	}
	add := func(name string, more ...cell) {
		share, verified, last := cell{}, cell{Number: true, Text: "0"}, text("not in the last 30 days")
		if u := uses[name]; u != nil {
			share = text(fmt.Sprintf("%.0f %%", 100*u.Share))
			share.HasBar, share.Bar, share.Tone = true, int(100*u.Share), tones[name]
			verified, last = number(u.Verified), r.ageCell(u.LastAt)
			if u.Removable {
				b.Notes = append(b.Notes, note{Tone: "info", Text: fmt.Sprintf("The secret %s verified no delivery "+
					"in the last %d hours, and others did. It can be removed from the configuration.", visible(name),
					activity.SecretHours)})
			}
		}
		b.Table.Rows = append(b.Table.Rows, append([]cell{code(name), share, verified, last}, more...))
		delete(uses, name)
	}
	if s.Settings != nil {
		for _, secret := range s.Settings.Secrets {
			add(secret.Name, text(secret.From), code(secret.Place), r.ageCell(secret.ChangedAt))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(uses)) {
		uses[name].Removable = false // this process does not have it in its configuration
		add(name, cell{Text: "not configured here", Badge: true}, cell{}, cell{})
	}
	if len(strip) > 1 {
		var titles []string
		hour := r.now.UTC().Truncate(time.Hour) // the counted hours are those of UTC
		for i := range activity.SecretHours {
			titles = append(titles, hour.Add(time.Duration(i+1-activity.SecretHours)*time.Hour).In(r.zone).
				Format("15:04"))
		}
		b.Chart = newChart("Verified deliveries by secret and hour", titles, strip)
	}
	return b
}

// ageCell shows a time with its age below it.
func (r *request) ageCell(at events.Instant) cell {
	c := r.shortTime(at.Time)
	if !at.IsZero() {
		c.Sub = agoText(r.now.Sub(at.Time))
	}
	return c
}

func rateText(s *operations.SourceSettings) string {
	if s.PerSecond == 0 {
		return "none"
	}
	return fmt.Sprintf("%d deliveries per second, %d at once", s.PerSecond, s.Burst)
}

// typesBlock lists the event types of a source, with those that are silent.
func (r *request) typesBlock(ctx context.Context, source string) (block, error) {
	p := operations.SourceTypeParams{Source: source}
	p.SetPage(500, "")
	found, err := operations.SourceTypes(ctx, r.c.Pages, p)
	if err != nil {
		return block{}, err
	}
	t := &table{Columns: typeList.columns, Empty: "No event is reported yet. Processes report once a minute.",
		Curl: curlLine(r, "/api/v1/source-types", map[string]string{"source": source})}
	for i := range found.Items {
		t.Rows = append(t.Rows, typeRow(r, &found.Items[i]))
	}
	return block{ID: "types", Heading: "Event types", Table: t}, nil
}

var typeList = list[operations.SourceTypeParams, activity.SourceType]{
	title: "Event types", text: "The event types that deliveries brought. A type is silent if no event came for " +
		"twice as long as its longest interval.",
	api: "/api/v1/source-types", main: []string{"source", "silent"}, presets: []preset{{"all", ""},
		{"silent", "?silent=true"}},
	columns: []string{"Event type", "Source", "Events", "Last", "Longest interval", "State"},
	row:     typeRow, read: operations.SourceTypes,
	empty: "No event type matches the filter. Processes report the types of events once a minute.",
	more:  "Show more",
}

func typeRow(r *request, e *activity.SourceType) []cell {
	return []cell{link(e.Type, query(path("events"), "source", e.Source, "type", e.Type)),
		link(e.Source, path("sources", e.Source)), number(e.Count), r.ageCell(e.LastAt), text(intervalText(e)),
		yes(e.Silent, "silent", "warning")}
}

func intervalText(e *activity.SourceType) string {
	if e.LongestInterval == 0 {
		return ""
	}
	return durationText(time.Duration(e.LongestInterval * float64(time.Second)))
}

// completenessBlock shows until when the log and the mirror of a source are complete.
func (r *request) completenessBlock(s *operations.SourceDetail) block {
	return block{ID: "completeness", Heading: "Complete until", Table: completenessList.embed(r, s.Watermarks, "")}
}
