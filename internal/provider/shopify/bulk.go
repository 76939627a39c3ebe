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

// A bulk operation runs at Shopify and writes the result of a query to a file, one node per line
// (https://shopify.dev/docs/api/usage/bulk-operations/queries). Its status is requested by its id,
// which the API supports since bulkSince. Answer recognizes both calls by the names of their result
// fields.
const (
	bulkSince = "2026-01"

	bulkStart = `mutation($query: String!) { ` + `started: bulkOperationRunQuery(query: $query, groupObjects: false) ` +
		`{ bulkOperation { id } userErrors { code message } } }`
	bulkState = `query($id: ID!) { bulk: bulkOperation(id: $id) ` +
		`{ status errorCode createdAt objectCount fileSize url } }`

	bulkNoun = "BulkOperation"
	// busyWait is the wait before checking whether the app's own operations have ended.
	busyWait = time.Minute
)

// FileTypes returns the types that GraphQL lists.
func (Shopify) FileTypes(api *provider.API) []string {
	return slices.Sorted(maps.Keys(bulkQueries(api)))
}

// bulkQueries are the queries by type.
func bulkQueries(api *provider.API) map[string]string {
	out := map[string]string{inventoryLevel: `{ locations(includeInactive: true, includeLegacy: true) ` +
		`{ edges { node { id inventoryLevels ` +
		`{ edges { node { id updatedAt item { legacyResourceId } location { legacyResourceId } } } } } } } }`}
	for name, c := range connectionsOf(api) {
		args := strings.TrimPrefix(c.more, ", ")
		if args != "" {
			args = "(" + args + ")"
		}
		out[name] = "{ " + c.field + args + " { edges { node { id updatedAt } } } }"
	}
	return out
}

// checkBulk returns what is wrong with the types for bulk operations.
func checkBulk(api *provider.API) error {
	if len(api.Bulk) > 0 && api.Version < bulkSince {
		return fmt.Errorf("bulk: needs API version %s or later", bulkSince)
	}
	types := Shopify{}.FileTypes(api)
	for _, name := range api.Bulk {
		if !slices.Contains(types, name) {
			return fmt.Errorf("bulk: objects of type %.64q cannot be listed by a bulk operation; those of %s can", name,
				strings.Join(types, ", "))
		}
	}
	return nil
}

// bulkCall starts an operation or requests its status. It returns false if the list is read page by
// page.
func bulkCall(api *provider.API, account, objectType string, changed bool, cursor string) (provider.Call, bool) {
	if name, _, ok := provider.FileCursor(cursor); ok {
		return graphqlCall(api, account, bulkState, map[string]any{"id": gidPrefix + bulkNoun + "/" + name}), true
	}
	if changed || cursor != "" || !slices.Contains(api.Bulk, objectType) {
		return provider.Call{}, false
	}
	return graphqlCall(api, account, bulkStart, map[string]any{"query": bulkQueries(api)[objectType]}), true
}

// bulkOperation is the status of a bulk operation.
type bulkOperation struct {
	Status    string      `json:"status"`
	ErrorCode string      `json:"errorCode"`
	CreatedAt time.Time   `json:"createdAt"`
	Objects   json.Number `json:"objectCount"`
	Size      json.Number `json:"fileSize"`
	URL       string      `json:"url"`
}

// classify returns what is wrong with an operation, or the zero Verdict. It does not use
// partialDataUrl, because a failed operation's file is incomplete.
func (o *bulkOperation) classify() provider.Verdict {
	objects, bad := o.Objects.Int64()
	switch {
	case o.Status == "":
		return provider.Verdict{Kind: provider.Expired, Detail: "answered that the bulk operation is not known any " +
			"more"}
	case o.ErrorCode == "ACCESS_DENIED":
		return provider.Verdict{Kind: provider.Rejected,
			Detail: describeMissingRight("", "the bulk operation ended with ACCESS_DENIED")}
	case o.Status == "FAILED", o.Status == "CANCELED", o.Status == "CANCELING", o.Status == "EXPIRED":
		return provider.Verdict{Kind: provider.Expired, Detail: "answered that the bulk operation is " + o.Status}
	case o.Status == "COMPLETED" && o.URL == "" && (bad != nil || objects != 0):
		return provider.Verdict{Kind: provider.Expired, Detail: "answered that the file of the bulk operation does " +
			"not exist any more"}
	}
	return provider.Verdict{}
}

// startedBulk is the response to bulkStart.
type startedBulk struct {
	Operation struct {
		ID string `json:"id"`
	} `json:"bulkOperation"`
	Errors []struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"userErrors"`
}

// ObjectFile reads the responses to bulkStart and bulkState.
func (Shopify) ObjectFile(_, cursor string, header http.Header, body []byte) (provider.File, bool, error) {
	var in struct {
		Data struct {
			Started *startedBulk   `json:"started"`
			Bulk    *bulkOperation `json:"bulk"`
		} `json:"data"`
	}
	name, _, isOperation := provider.FileCursor(cursor)
	err := json.Unmarshal(body, &in)
	switch {
	case err != nil && isOperation:
		return provider.File{}, false, fmt.Errorf("read bulk operation %.40s: %w", name, err)
	case err != nil: // a page, which ObjectPage reads
		return provider.File{}, false, nil
	case in.Data.Started != nil:
		f, err := in.Data.Started.file()
		return f, true, err
	case in.Data.Bulk != nil && isOperation:
		f, err := in.Data.Bulk.file(name, header)
		return f, true, err
	}
	return provider.File{}, false, nil
}

// isBusy reports whether the operation was not started because others are running.
func (s *startedBulk) isBusy() bool {
	if len(s.Errors) == 0 {
		return false
	}
	e := s.Errors[0]
	return e.Code == "OPERATION_IN_PROGRESS" || e.Code == "LIMIT_REACHED" ||
		strings.Contains(e.Message, "already in progress")
}

// classify returns why an operation was not started and never will be. The zero Verdict means that
// it was started, or waits for others.
func (s *startedBulk) classify() provider.Verdict {
	if len(s.Errors) == 0 || s.isBusy() {
		return provider.Verdict{}
	}
	code := s.Errors[0].Code
	if !errorCode.MatchString(code) {
		code = "no code"
	}
	return provider.Verdict{Kind: provider.Rejected, Detail: "answered that the bulk operation was not started (" +
		code + "): remove the type from api.bulk; " + describedTypeRemedy}
}

// file describes an operation that was started, or that waits for others. It does not touch the
// app's own operations.
func (s *startedBulk) file() (provider.File, error) {
	if s.isBusy() {
		return provider.File{Wait: busyWait, Reason: "one of the app's bulk operations in the shop must end first, " +
			"since Shopify lets no more of them run at once"}, nil
	}
	number := gidNumber(s.Operation.ID)
	if gidNoun(s.Operation.ID) != bulkNoun || digits(number) == "" {
		return provider.File{}, errors.New("the response contains no bulk operation")
	}
	return provider.File{Name: number, Wait: time.Second, Reason: "bulk operation " + number +
		" of the shop has just started"}, nil
}

// file describes an operation that Answer found valid. The longer it runs, the less often its
// status is requested.
func (o *bulkOperation) file(name string, header http.Header) (provider.File, error) {
	f := provider.File{Name: name, Ready: o.Status == "COMPLETED", URL: o.URL}
	if f.Ready {
		f.Size, _ = strconv.ParseInt(o.Size.String(), 10, 64) // it may be null
		return f, nil
	}
	if o.Status != "CREATED" && o.Status != "RUNNING" {
		status := o.Status
		if !errorCode.MatchString(status) {
			status = "no status"
		}
		return f, fmt.Errorf("bulk operation %s has an unknown status: %s", name, status)
	}
	date, _ := http.ParseTime(header.Get("Date"))
	f.Wait = min(max(date.Sub(o.CreatedAt)/4, time.Second), time.Minute)
	f.Reason = fmt.Sprintf("bulk operation %s of the shop has written %.20s lines so far", name, o.Objects)
	return f, nil
}

// ObjectLine reads a node.
func (Shopify) ObjectLine(objectType string, line []byte) (provider.ListedObject, bool, error) {
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
		return provider.ListedObject{}, false, fmt.Errorf("a line is not a node: %w", err)
	}
	if objectType == inventoryLevel {
		if gidNoun(in.ID) == "Location" { // the levels are listed below it
			return provider.ListedObject{}, false, nil
		}
		one, err := newListedObject(in.Item.ID+":"+in.Location.ID, in.UpdatedAt)
		return one, err == nil, err
	}
	one, err := newListedObject(gidNumber(in.ID), in.UpdatedAt)
	return one, err == nil, err
}
