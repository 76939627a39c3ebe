package admin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/golden"
	"github.com/postern-gateway/postern/internal/verify"
	"github.com/postern-gateway/postern/internal/versioning"
	"github.com/postern-gateway/postern/internal/watermarks"
)

const generated = "<!-- Generated from internal/admin and internal/ingest: go test ./internal/admin " +
	"-run TestReference -update. Do not edit. -->\n\n"

// typeNames are the names of types in the reference where the Go name does not say enough.
var typeNames = map[reflect.Type]string{
	reflect.TypeFor[versioning.View]():             "Object",
	reflect.TypeFor[versioning.Difference]():       "PathDifference",
	reflect.TypeFor[changes.Item]():                "ObjectChange",
	reflect.TypeFor[changes.Page]():                "ChangePage",
	reflect.TypeFor[events.Item]():                 "Event",
	reflect.TypeFor[events.Content]():              "EventContent",
	reflect.TypeFor[events.Original]():             "OriginalEvent",
	reflect.TypeFor[verify.Report]():               "IntegrityReport",
	reflect.TypeFor[verify.Item]():                 "Violation",
	reflect.TypeFor[verify.Spool]():                "CheckedSpool",
	reflect.TypeFor[effects.View]():                "EffectDetail",
	reflect.TypeFor[effects.Step]():                "EffectStep",
	reflect.TypeFor[retention.View]():              "Retention",
	reflect.TypeFor[retention.Policy]():            "RetentionPolicy",
	reflect.TypeFor[redaction.AuditEntry]():        "Redaction",
	reflect.TypeFor[adminauth.AuditEntry]():        "AuditEntry",
	reflect.TypeFor[objectscan.Difference]():       "ScanDifference",
	reflect.TypeFor[rebuild.Page]():                "RebuildComparison",
	reflect.TypeFor[rebuild.Difference]():          "RebuildDifference",
	reflect.TypeFor[runs.Schedule]():               "ScheduleSettings",
	reflect.TypeFor[runs.ScheduleState]():          "Schedule",
	reflect.TypeFor[refetch.Request]():             "RefetchRequest",
	reflect.TypeFor[watermarks.Completeness]():     "Watermark",
	reflect.TypeFor[processor.RepublishView]():     "RepublishPass",
	reflect.TypeFor[processor.RepublisherStatus](): "Republisher",
	reflect.TypeFor[doctor.Check]():                "DoctorCheck",
	reflect.TypeFor[operations.StreamView]():       "StreamState",
	reflect.TypeFor[stream.Status]():               "StreamStatus",
	reflect.TypeFor[operations.DryRunResult]():     "DryRun",
	reflect.TypeFor[operations.BacktestResult]():   "Backtest",
	reflect.TypeFor[operations.ReplayPreview]():    "ReplayPreview",
	reflect.TypeFor[replay.RetryPreview]():         "RetryPreview",
}

// alternatives are the results of routes that have several, by what the request asks for.
var alternatives = map[string][]struct {
	when   string
	result reflect.Type
}{
	"/replays": {{"", reflect.TypeFor[operations.StartedRun]()},
		{"with `preview`", reflect.TypeFor[operations.ReplayPreview]()},
		{"with `dry_run`", reflect.TypeFor[operations.DryRunResult]()}},
	"/retries": {{"", reflect.TypeFor[operations.StartedRun]()},
		{"with `preview`", reflect.TypeFor[replay.RetryPreview]()}},
}

// reference writes the description of the API.
type reference struct {
	strings.Builder
	comments comments
	// used are the types that a result contains, by their names.
	used map[string]reflect.Type
}

// TestReference_api_isCurrent writes docs/reference/api.md.
func TestReference_api_isCurrent(t *testing.T) {
	t.Parallel()
	r := &reference{comments: comments{}, used: map[string]reflect.Type{}}
	r.WriteString(generated + apiHead)
	all := (&handler{}).routes()
	r.WriteString("| route | operation |\n|---|---|\n")
	for _, route := range all {
		fmt.Fprintf(r, "| [`%s %s`](#%s) | %s |\n", route.method, apiPath(route.path), routeAnchor(route),
			route.summary)
	}
	for _, route := range all {
		r.writeRoute(t, route)
	}
	r.WriteString(resultsHead)
	for written := map[string]bool{}; len(written) < len(r.used); {
		for _, name := range slices.Sorted(maps.Keys(r.used)) {
			if !written[name] {
				written[name] = true
				r.writeType(t, name, r.used[name])
				break
			}
		}
	}
	golden.Page(t, "../../docs/reference/api.md", sortTypes(r.String()))
}

// sortTypes puts the sections of the types in the order of their names. A type is only known once
// the types before it are written.
func sortTypes(page string) string {
	head, rest, _ := strings.Cut(page, "\n### ")
	for !strings.Contains(head, "\n## Results\n") {
		var more string
		more, rest, _ = strings.Cut(rest, "\n### ")
		head += "\n### " + more
	}
	sections := strings.Split(rest, "\n### ")
	for i, s := range sections {
		sections[i] = strings.TrimRight(s, "\n") + "\n"
	}
	slices.Sort(sections)
	return head + "\n### " + strings.Join(sections, "\n### ")
}

var pathParam = regexp.MustCompile(`:([a-z]+)`)

func apiPath(path string) string { return "/api/v1" + pathParam.ReplaceAllString(path, "{$1}") }

// routeAnchor returns the anchor of a route's heading.
func routeAnchor(r route) string {
	return regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ReplaceAll(strings.ToLower(r.method+" "+
		apiPath(r.path)), " ", "-"), "")
}

func (r *reference) writeRoute(t *testing.T, of route) {
	fmt.Fprintf(r, "\n### %s %s\n\n%s.", of.method, apiPath(of.path), of.summary)
	switch results := alternatives[of.path]; {
	case of.stream != nil && of.result == streams[of.path].message:
		fmt.Fprintf(r, " Result: a stream (`%s`) whose messages are of the type %s; %s\n", eventStreamType,
			r.typeOf(of.result, ""), streamText)
	case of.stream != nil:
		fmt.Fprintf(r, " Result: %s; with `Accept: %s` a stream whose messages are of the type %s. %s\n",
			r.typeOf(of.result, ""), eventStreamType, r.typeOf(streams[of.path].message, ""), changesText)
	case results == nil:
		fmt.Fprintf(r, " Result: %s.\n", r.typeOf(of.result, ""))
	default:
		var texts []string
		for _, a := range results {
			texts = append(texts, strings.TrimSpace(a.when+" "+r.typeOf(a.result, "")))
		}
		fmt.Fprintf(r, " Result: %s.\n", strings.Join(texts, "; "))
	}
	params := operations.Params(of.params)
	named := map[string]bool{}
	for _, m := range pathParam.FindAllStringSubmatch(of.path, -1) {
		named[m[1]] = true
	}
	if len(params) == 0 && len(named) == 0 {
		return
	}
	r.WriteString("\n| parameter | in | type | meaning |\n|---|---|---|---|\n")
	for _, m := range pathParam.FindAllStringSubmatch(of.path, -1) {
		if !slices.ContainsFunc(params, func(p operations.Param) bool { return p.Name == m[1] }) {
			fmt.Fprintf(r, "| `%s` | path | integer | Postern's id |\n", m[1])
		}
	}
	where := "query"
	if of.method != http.MethodGet {
		where = "body"
	}
	for _, p := range params {
		in := where
		if named[p.Name] {
			in = "path"
		}
		help := cmp.Or(p.Help, r.helpOf(t, of.params, p.Name))
		if slices.Contains(required[operationID(of)], p.Name) && !strings.Contains(help, "required") {
			help += "; required"
		}
		fmt.Fprintf(r, "| `%s` | %s | %s | %s |\n", p.Name, in, r.typeOf(p.Type, ""), cell(help))
	}
}

// helpOf returns the comment of a parameter that only the API has.
func (r *reference) helpOf(t *testing.T, params any, name string) string {
	for f := range reflect.TypeOf(params).Fields() {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name {
			return r.comments.field(t, reflect.TypeOf(params), f.Name)
		}
	}
	return ""
}

// cell escapes a text for a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`, "\n", " ").Replace(text)
}

var itemsOf = regexp.MustCompile(`^Page\[`)

// typeOf returns the name of a type in JSON, with a link to its section. option is the option of
// its JSON tag.
func (r *reference) typeOf(t reflect.Type, option string) string {
	switch {
	case t.Kind() == reflect.Pointer:
		return r.typeOf(t.Elem(), option)
	case t == reflect.TypeFor[events.Instant](), t == reflect.TypeFor[operations.Time](),
		t == reflect.TypeFor[time.Time]():
		return "time"
	case t == reflect.TypeFor[json.RawMessage]():
		return "JSON"
	case t == reflect.TypeFor[operations.IDs](), t == reflect.TypeFor[operations.RunNumber]():
		return "string"
	case itemsOf.MatchString(t.Name()):
		field, _ := t.FieldByName("Items")
		return "[page](#pages) of " + r.typeOf(field.Type.Elem(), "")
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "Base64"
		}
		return "list of " + r.typeOf(t.Elem(), option)
	case reflect.Map:
		return "object of " + r.typeOf(t.Elem(), "")
	case reflect.Interface:
		return "JSON"
	case reflect.Struct:
		name := cmp.Or(typeNames[t], t.Name())
		if other, ok := r.used[name]; ok && other != t {
			panic(fmt.Sprintf("%s and %s have one name: add one to typeNames", t, other))
		}
		r.used[name] = t
		return "[" + name + "](#" + strings.ToLower(name) + ")"
	}
	if isInString(option) {
		return "integer in a string"
	}
	return "integer"
}

// isInString reports whether the options of a JSON tag write a number as a string.
func isInString(options string) bool { return slices.Contains(strings.Split(options, ","), "string") }

// writeType writes the section of a type.
func (r *reference) writeType(t *testing.T, name string, of reflect.Type) {
	fmt.Fprintf(r, "\n### %s\n\n", name)
	for f := range of.Fields() {
		if f.Anonymous && f.Tag.Get("json") == "" {
			fmt.Fprintf(r, "The members of %s, and:\n\n", r.typeOf(f.Type, ""))
		}
	}
	r.WriteString("| member | type | meaning |\n|---|---|---|\n")
	for f := range of.Fields() {
		tag, option, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "-" || !f.IsExported() || f.Anonymous && tag == "" {
			continue
		}
		if tag == "" {
			t.Errorf("%s.%s has no JSON name", of, f.Name)
		}
		optional := ""
		if strings.Contains(option, "omit") {
			optional = "?"
		}
		fmt.Fprintf(r, "| `%s`%s | %s | %s |\n", tag, optional, r.typeOf(f.Type, option),
			cell(r.comments.field(t, of, f.Name)))
	}
}

// TestReference_problemTypes_isCurrent writes docs/reference/problem-types.md.
func TestReference_problemTypes_isCurrent(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(generated + problemsHead + "| status | type | title | meaning |\n|---|---|---|---|\n")
	for _, p := range ingest.ProblemTypes() {
		fmt.Fprintf(&b, "| %d | `%s` | %s | %s |\n", p.Status, strings.TrimPrefix(p.Type, urn), p.Title,
			cell(p.Detail))
	}
	b.WriteString("\n## Admin API\n\n| status | type | title | meaning |\n|---|---|---|---|\n")
	names := slices.SortedFunc(maps.Keys(problemTypes), func(a, b string) int {
		return cmp.Or(cmp.Compare(problemTypes[a].status, problemTypes[b].status), cmp.Compare(a, b))
	})
	for _, name := range names {
		p := problemTypes[name]
		fmt.Fprintf(&b, "| %d | `%s` | %s | %s |\n", p.status, name, p.title, cell(p.detail))
	}
	b.WriteString("| 404, 405, 415 | `about:blank` | of the status | The path or its method does not exist, or " +
		"a POST has another `Content-Type` than `application/json`. |\n")
	golden.Page(t, "../../docs/reference/problem-types.md", b.String())
}
