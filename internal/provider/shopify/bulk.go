package shopify

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

var _ provider.FileLister = Shopify{}

// A bulk operation runs at Shopify and writes what a query answers into a file, a node a line (https://shopify.dev/docs/api/usage/bulk-operations/queries). It is asked for by its id,
// which the API can since bulkSince. Answer knows both calls by the names that they give to what they ask for.
const (
	bulkSince = "2026-01"

	bulkStart = `mutation($query: String!) { started: bulkOperationRunQuery(query: $query, groupObjects: false) { bulkOperation { id } userErrors { code message } } }`
	bulkState = `query($id: ID!) { bulk: bulkOperation(id: $id) { status errorCode createdAt objectCount fileSize url } }`

	bulkNoun = "BulkOperation"
	// crowdedWait is until it is seen whether the app's own operations have ended.
	crowdedWait = time.Minute
)

// FileTypes are those that GraphQL lists.
func (Shopify) FileTypes(api *provider.API) []string {
	return slices.Sorted(maps.Keys(bulkQueries(api)))
}

// bulkQueries are what is asked by type.
func bulkQueries(api *provider.API) map[string]string {
	out := map[string]string{levels: `{ locations(includeInactive: true, includeLegacy: true) { edges { node { id inventoryLevels { edges { node { id updatedAt item { legacyResourceId } location { legacyResourceId } } } } } } } }`}
	for name, c := range connectionsOf(api) {
		args := strings.TrimPrefix(c.more, ", ")
		if args != "" {
			args = "(" + args + ")"
		}
		out[name] = "{ " + c.field + args + " { edges { node { id updatedAt } } } }"
	}
	return out
}

// checkBulk says what of the types named for bulk operations cannot be.
func checkBulk(api *provider.API) error {
	if len(api.Bulk) > 0 && api.Version < bulkSince {
		return fmt.Errorf("bulk: needs version %s or later", bulkSince)
	}
	types := Shopify{}.FileTypes(api)
	for _, name := range api.Bulk {
		if !slices.Contains(types, name) {
			return fmt.Errorf("bulk: objects of type %.64q are listed by no bulk operation; those of %s can be", name, strings.Join(types, ", "))
		}
	}
	return nil
}

// bulkCall begins an operation, or asks for one; false where the list is read page by page.
func bulkCall(api *provider.API, account, objectType string, changed bool, cursor string) (provider.Call, bool) {
	if name, _, ok := provider.FileCursor(cursor); ok {
		return ask(api, account, bulkState, map[string]any{"id": gidPrefix + bulkNoun + "/" + name}), true
	}
	if changed || cursor != "" || !slices.Contains(api.Bulk, objectType) {
		return provider.Call{}, false
	}
	return ask(api, account, bulkStart, map[string]any{"query": bulkQueries(api)[objectType]}), true
}

// operation is a bulk operation as it is asked for.
type operation struct {
	Status    string      `json:"status"`
	ErrorCode string      `json:"errorCode"`
	CreatedAt time.Time   `json:"createdAt"`
	Objects   json.Number `json:"objectCount"`
	Size      json.Number `json:"fileSize"`
	URL       string      `json:"url"`
}

// judge says what is wrong with an operation; the zero Verdict: nothing. partialDataUrl is not asked for: what a failed one has written is no whole list.
func (o *operation) judge() provider.Verdict {
	objects, bad := o.Objects.Int64()
	switch {
	case o.Status == "":
		return provider.Verdict{Kind: provider.Expired, Detail: "answered that the bulk operation is not known any more"}
	case o.ErrorCode == "ACCESS_DENIED":
		return provider.Verdict{Kind: provider.Refused, Detail: lacking("", "the bulk operation ended with ACCESS_DENIED")}
	case o.Status == "FAILED", o.Status == "CANCELED", o.Status == "CANCELING", o.Status == "EXPIRED":
		return provider.Verdict{Kind: provider.Expired, Detail: "answered that the bulk operation is " + o.Status}
	case o.Status == "COMPLETED" && o.URL == "" && (bad != nil || objects != 0):
		return provider.Verdict{Kind: provider.Expired, Detail: "answered that the file of the bulk operation is not there any more"}
	}
	return provider.Verdict{}
}

// started is the answer to bulkStart.
type started struct {
	Operation struct {
		ID string `json:"id"`
	} `json:"bulkOperation"`
	Errors []struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"userErrors"`
}

// ObjectFile reads the answers to bulkStart and bulkState.
func (Shopify) ObjectFile(_, cursor string, header http.Header, body []byte) (provider.File, bool, error) {
	var in struct {
		Data struct {
			Started *started   `json:"started"`
			Bulk    *operation `json:"bulk"`
		} `json:"data"`
	}
	name, _, asked := provider.FileCursor(cursor)
	err := json.Unmarshal(body, &in)
	switch {
	case err != nil && asked:
		return provider.File{}, false, fmt.Errorf("read bulk operation %.40s: %w", name, err)
	case err != nil: // a page, which ObjectPage says more of
		return provider.File{}, false, nil
	case in.Data.Started != nil:
		f, err := in.Data.Started.file()
		return f, true, err
	case in.Data.Bulk != nil && asked:
		f, err := in.Data.Bulk.file(name, header)
		return f, true, err
	}
	return provider.File{}, false, nil
}

// crowded: the operation did not begin, for there is no room.
func (s *started) crowded() bool {
	if len(s.Errors) == 0 {
		return false
	}
	e := s.Errors[0]
	return e.Code == "OPERATION_IN_PROGRESS" || e.Code == "LIMIT_REACHED" || strings.Contains(e.Message, "already in progress")
}

// judge says why an operation did not begin, and will not; the zero Verdict: it has begun, or waits for room.
func (s *started) judge() provider.Verdict {
	if len(s.Errors) == 0 || s.crowded() {
		return provider.Verdict{}
	}
	code := s.Errors[0].Code
	if !errorCode.MatchString(code) {
		code = "no code"
	}
	return provider.Verdict{Kind: provider.Refused, Detail: "answered that the bulk operation was not begun (" + code + "): take the type out of api.bulk; " + asDescribed}
}

// file is an operation that has begun, or waits for room, as judge has said. The app's own operations are left alone, whoever began them.
func (s *started) file() (provider.File, error) {
	if s.crowded() {
		return provider.File{Wait: crowdedWait, Why: "one of the app's bulk operations in the shop must end first, since Shopify lets no more of them run at once"}, nil
	}
	number := gidNumber(s.Operation.ID)
	if gidNoun(s.Operation.ID) != bulkNoun || digits(number) == "" {
		return provider.File{}, errors.New("the answer names no bulk operation")
	}
	return provider.File{Name: number, Wait: time.Second, Why: "bulk operation " + number + " of the shop has just begun"}, nil
}

// file is an operation that nothing is wrong with, as Answer has said. It is asked for the less often the longer it takes.
func (o *operation) file(name string, header http.Header) (provider.File, error) {
	f := provider.File{Name: name, Ready: o.Status == "COMPLETED", URL: o.URL}
	if f.Ready {
		f.Size, _ = strconv.ParseInt(o.Size.String(), 10, 64) // it may be null
		return f, nil
	}
	if o.Status != "CREATED" && o.Status != "RUNNING" {
		status := o.Status
		if !errorCode.MatchString(status) {
			status = "no word"
		}
		return f, fmt.Errorf("bulk operation %s has a status that is not known: %s", name, status)
	}
	date, _ := http.ParseTime(header.Get("Date"))
	f.Wait = min(max(date.Sub(o.CreatedAt)/4, time.Second), time.Minute)
	f.Why = fmt.Sprintf("bulk operation %s of the shop has written %.20s lines so far", name, o.Objects)
	return f, nil
}

// ObjectLine reads a node.
func (Shopify) ObjectLine(objectType string, line []byte) (provider.Listed, bool, error) {
	var in struct {
		ID        string    `json:"id"`
		UpdatedAt time.Time `json:"updatedAt"`
		Item      struct {
			ID string `json:"legacyResourceId"`
		} `json:"item"`
		Location struct {
			ID string `json:"legacyResourceId"`
		} `json:"location"`
	}
	if err := json.Unmarshal(line, &in); err != nil {
		return provider.Listed{}, false, fmt.Errorf("a line is no node: %w", err)
	}
	if objectType == levels {
		if gidNoun(in.ID) == "Location" { // which the levels are listed below
			return provider.Listed{}, false, nil
		}
		one, err := listed(in.Item.ID+":"+in.Location.ID, in.UpdatedAt)
		return one, err == nil, err
	}
	one, err := listed(gidNumber(in.ID), in.UpdatedAt)
	return one, err == nil, err
}
