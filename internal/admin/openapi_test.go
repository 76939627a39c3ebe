package admin

import (
	"bytes"
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

	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/idempotency"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/golden"
)

// object is an object of the OpenAPI document.
type object = map[string]any

// operationIDs are the ids of operations whose route does not lead to a good one.
var operationIDs = map[string]string{
	"GET /effects/backtest":         "backtestEffects",
	"GET /events/tail":              "followEvents",
	"GET /failures":                 "listFailures",
	"GET /find":                     "find",
	"GET /doctor":                   "getDoctorReport",
	"GET /openapi.json":             "getOpenAPI",
	"GET /rebuilds/:id/compare":     "compareRebuild",
	"GET /reports/verify":           "getVerifyReport",
	"POST /effects/approve":         "approveEffects",
	"POST /effects/reject":          "rejectEffects",
	"POST /effects/retry":           "retryEffects",
	"POST /refetches":               "requestRefetch",
	"POST /rejections/reprocess":    "reprocessRejections",
	"POST /rejections/verify":       "verifyRejections",
	"POST /stream/republish-passes": "requestStreamRepublishPass",
}

// required are the parameters without which a request is invalid, by operation. A test compares
// them with the handlers. The type of an object, which has two names, is not among them.
var required = map[string][]string{
	"approveEffect":       {"reason"},
	"approveEffects":      {"ids", "reason"},
	"approveRun":          {"reason"},
	"backtestEffects":     {"rule", "since"},
	"cancelRefetch":       {"source", "object_id"},
	"compensateEffect":    {"reason"},
	"find":                {"q"},
	"getObjectAt":         {"time"},
	"overwriteObject":     {"source", "object_id", "reason"},
	"rejectEffect":        {"reason"},
	"rejectEffects":       {"ids", "reason"},
	"removeSpool":         {"reason"},
	"startFeedEpoch":      {"reason"},
	"reprocessRejections": {"reason"},
	"requestRefetch":      {"source", "object_id"},
	"resolveEffect":       {"step", "done", "reason"},
	"retryEffect":         {"reason"},
	"retryEffects":        {"ids", "reason"},
	"startRebuild":        {"source"},
	"startReconciliation": {"source"},
}

// gatewayRoutes are the routes that only a gateway can execute.
var gatewayRoutes = []string{"/rejections/verify", "/rejections/reprocess"}

// dryRuns are the routes that can return the problems of a dry run.
var dryRuns = []string{"/replays", "/effects/backtest"}

// streams describe the messages of routes with streams.
var streams = map[string]struct {
	message  reflect.Type
	id, text string
}{
	"/events/tail": {reflect.TypeFor[events.Item](), `^[0-9]+$`, "Messages with the id of an event, whose data are " +
		"that event as JSON. A message `more` follows if more than 200 events matched in a second: its data are " +
		"{\"count\": n}, the number of the others. A comment each 15 s shows that the stream is alive."},
	"/changes": {reflect.TypeFor[changes.Item](), `^[0-9a-f]+-[0-9]+$`, "Messages whose id is a cursor, and whose " +
		"data are a change as JSON. A message without data only moves the cursor. A comment each 15 s shows that the " +
		"stream is alive."},
}

// TestReference_openAPI_isCurrent writes internal/admin/openapi.json.
func TestReference_openAPI_isCurrent(t *testing.T) {
	t.Parallel()
	s := &schemas{reference: reference{comments: comments{}, used: map[string]reflect.Type{}}, t: t, all: object{},
		meanings: commonMeanings()}
	paths, tags := object{}, []object{}
	for _, r := range (&handler{}).routes() {
		path, _ := paths[apiPath(r.path)].(object)
		if path == nil {
			path = object{}
			paths[apiPath(r.path)] = path
		}
		path[strings.ToLower(r.method)] = s.operation(r)
		if tag := tagOf(r); !slices.ContainsFunc(tags, func(o object) bool { return o["name"] == tag }) {
			tags = append(tags, object{"name": tag})
		}
	}
	document := object{
		"openapi": "3.1.0",
		"info": object{"title": "Postern admin API", "version": "1", "license": object{"name": "Apache-2.0",
			"identifier": "Apache-2.0"},
			"description": "Read and operate a Postern gateway. Every process serves this API at `admin.listen`. " +
				"`x-postern-role` is the least role of the token."},
		"servers":  []object{{"url": "http://127.0.0.1:8081", "description": "the default of admin.listen"}},
		"security": []object{{"token": []string{}}, {}},
		"tags":     tags,
		"paths":    paths,
		"components": object{"schemas": s.all, "responses": s.problemResponses(), "securitySchemes": object{
			"token": object{"type": "http", "scheme": "bearer", "description": "A token of postern token create. " +
				"On loopback a request without a token has the rights of an operator."}},
			"parameters": object{"IdempotencyKey": object{"name": idempotency.Header, "in": "header",
				"description": "The same request with the same key changes something once, and gets the first " +
					"response again for 24 hours.", "example": `"8e03978e-40d5-43dd-bc93-6894a57f9324"`,
				"schema": object{"type": "string", "minLength": 1}}}},
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	testkit.Must(t, e.Encode(document))
	golden.Page(t, "openapi.json", b.String())
}

func tagOf(r route) string {
	first, _, _ := strings.Cut(strings.TrimPrefix(r.path, "/"), "/")
	return strings.TrimSuffix(first, ".json")
}

// operationID returns the id of an operation: listEvents, getEvent, pauseRun, startReplay.
func operationID(r route) string {
	if id := operationIDs[r.method+" "+r.path]; id != "" {
		return id
	}
	var names []string
	for part := range strings.SplitSeq(strings.Trim(r.path, "/"), "/") {
		if !strings.HasPrefix(part, ":") {
			for word := range strings.SplitSeq(part, "-") {
				names = append(names, strings.ToUpper(word[:1])+word[1:])
			}
		}
	}
	last := len(names) - 1
	switch plural := strings.HasSuffix(names[last], "s"); {
	case r.method == http.MethodPut:
		return "set" + singular(names...)
	case r.method == http.MethodPost && plural:
		return "start" + singular(names...)
	case r.method == http.MethodPost:
		return strings.ToLower(names[last]) + singular(names[:last]...)
	case itemsOf.MatchString(r.result.Name()), r.result == reflect.TypeFor[changes.Page]():
		return "list" + singular(names[:last]...) + names[last]
	}
	return "get" + singular(names...)
}

// singular returns the concatenation of names, each without the ending of its plural.
func singular(names ...string) (all string) {
	for _, name := range names {
		switch {
		case strings.HasSuffix(name, "ies"):
			name = strings.TrimSuffix(name, "ies") + "y"
		case strings.HasSuffix(name, "ches"), strings.HasSuffix(name, "sses"):
			name = strings.TrimSuffix(name, "es")
		default:
			name = strings.TrimSuffix(name, "s")
		}
		all += name
	}
	return all
}

// operation describes a route.
func (s *schemas) operation(r route) object {
	parameters, members := []object{}, object{}
	var bodyNames []string
	needed := required[operationID(r)]
	params := operations.Params(r.params)
	for _, m := range pathParam.FindAllStringSubmatch(r.path, -1) {
		if !slices.ContainsFunc(params, func(p operations.Param) bool { return p.Name == m[1] }) {
			params = append(params, operations.Param{Name: m[1], Help: "Postern's id", Type: reflect.TypeFor[int64]()})
		}
	}
	for _, p := range params {
		help := cmp.Or(p.Help, s.helpOf(s.t, r.params, p.Name))
		switch in := slices.Contains(strings.Split(r.path, "/"), ":"+p.Name); {
		case in:
			parameters = append(parameters, object{"name": p.Name, "in": "path", "required": true, "description": help,
				"schema": s.param(p)})
		case r.method == http.MethodGet:
			parameters = append(parameters, object{"name": p.Name, "in": "query", "description": help,
				"required": slices.Contains(needed, p.Name), "schema": s.param(p)})
		default:
			schema := s.param(p)
			schema["description"] = help
			members[p.Name] = schema
			bodyNames = append(bodyNames, p.Name)
		}
	}
	ok := object{"description": r.summary, "content": object{"application/json": object{"schema": s.result(r)}}}
	if r.stream != nil { // OpenAPI 3.1 cannot describe the messages of a stream
		about := streams[r.path]
		content := object{eventStreamType: object{"schema": object{"type": "string", "description": about.text},
			"x-message-schema": s.of(about.message, "")}}
		if about.message != r.result {
			content["application/json"] = object{"schema": s.result(r)}
		}
		ok["content"] = content
		parameters = append(parameters, object{"name": "Last-Event-ID", "in": "header", "description": "The same as " +
			"`after`, and counts more. Browsers send it automatically.", "schema": object{"type": "string",
			"pattern": about.id}})
	}
	o := object{"operationId": operationID(r), "summary": r.summary, "tags": []string{tagOf(r)},
		"x-postern-role": LeastRole(r.method, "/api/v1"+r.path), "responses": s.responses(r, ok)}
	if r.method == http.MethodPost {
		parameters = append(parameters, object{"$ref": "#/components/parameters/IdempotencyKey"})
		ok["headers"] = object{replayedHeader: object{"description": "true: the response of an earlier request with " +
			"the same key", "schema": object{"type": "string", "const": "true"}}}
	}
	if r.method != http.MethodGet {
		schema := object{"type": "object", "properties": members, "additionalProperties": false}
		if needed != nil {
			schema["required"] = needed
		}
		o["requestBody"] = object{"required": needed != nil || !slices.Equal(bodyNames, []string{"reason"}),
			"content": object{"application/json": object{"schema": schema}}}
	}
	if len(parameters) > 0 {
		o["parameters"] = parameters
	}
	return o
}

// result describes the result of a route.
func (s *schemas) result(r route) object {
	var several []object
	for _, a := range alternatives[r.path] {
		if r.method == http.MethodPost {
			several = append(several, s.of(a.result, ""))
		}
	}
	if several != nil {
		return object{"oneOf": several}
	}
	switch {
	case r.result == reflect.TypeFor[json.RawMessage]():
		return object{"type": "object"}
	case r.result.Kind() == reflect.Pointer: // never nil
		return s.of(r.result.Elem(), "")
	}
	return s.of(r.result, "")
}

// responses are the result of a route, and its problems by status.
func (s *schemas) responses(r route, ok object) object {
	all := object{"200": ok}
	for name, p := range problemTypes {
		onlyPOST := slices.Contains([]string{"role", "own-request", "idempotency-key", "in-flight", "key-reused"}, name)
		onlyDryRun := slices.Contains([]string{"busy", "too-many"}, name)
		if name == "cursor-ended" && r.path != "/changes" && r.method != http.MethodPut ||
			slices.Contains([]string{"cursor-back", "other-reader"}, name) && r.method != http.MethodPut {
			continue
		}
		if name == "other-process" && !slices.Contains(gatewayRoutes, r.path) {
			continue
		}
		if name != "not-ready" && (!onlyPOST || r.method == http.MethodPost) &&
			(!onlyDryRun || slices.Contains(dryRuns, r.path)) {
			all[fmt.Sprint(p.status)] = object{"$ref": fmt.Sprint("#/components/responses/Problem", p.status)}
		}
	}
	if r.method != http.MethodGet {
		all["415"] = object{"$ref": "#/components/responses/Problem415"}
	}
	return all
}

// problemResponses are the responses with problems, one for each status.
func (s *schemas) problemResponses() object {
	texts := map[int][]string{http.StatusUnsupportedMediaType: {
		"`about:blank`: The Content-Type is not application/json."}}
	types := []string{"about:blank"}
	for _, name := range slices.Sorted(maps.Keys(problemTypes)) {
		p := problemTypes[name]
		types = append(types, urn+name)
		texts[p.status] = append(texts[p.status], "`"+urn+name+"`: "+p.detail)
	}
	schema := s.of(reflect.TypeFor[Problem](), "")
	members := s.all["Problem"].(object)["properties"].(object)
	members["type"] = object{"type": "string", "description": "the type of the problem; about:blank: the title is " +
		"that of the status", "enum": types}
	members["status"] = object{"type": "integer", "description": "the status of the response"}
	members["matches"] = object{"type": "array", "description": members["matches"].(object)["description"],
		"items": object{"oneOf": []object{s.of(reflect.TypeFor[match](), ""),
			s.of(reflect.TypeFor[operations.SeveralObjectsError]().Field(0).Type.Elem(), "")}}}
	all := object{}
	for status, text := range texts {
		response := object{"description": strings.Join(text, "\n\n"), "content": object{
			problemMediaType: object{"schema": schema}}}
		switch status {
		case http.StatusUnauthorized:
			response["headers"] = object{"WWW-Authenticate": object{"schema": object{"type": "string"}}}
		case http.StatusConflict, http.StatusTooManyRequests:
			response["headers"] = object{"Retry-After": object{"description": "seconds", "schema": object{
				"type": "string", "pattern": "^[0-9]+$"}}}
		}
		all[fmt.Sprint("Problem", status)] = response
	}
	return all
}

var (
	meaningRow = regexp.MustCompile("(?m)^\\| (`.*`) \\| [a-z, ]* \\| (.*) \\|$")
	memberName = regexp.MustCompile(`[a-z_]+`)
)

// commonMeanings returns the meanings of members without a comment, from the reference.
func commonMeanings() map[string]string {
	all := map[string]string{}
	for _, row := range meaningRow.FindAllStringSubmatch(resultsHead, -1) {
		for _, name := range memberName.FindAllString(row[1], -1) {
			all[name] = row[2]
		}
	}
	return all
}
