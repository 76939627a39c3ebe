package shopifyfake

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

// BulkPlan configures the next bulk operations and downloads. Each number counts down to 0. With
// the zero value each operation succeeds at the first poll.
type BulkPlan struct {
	// OtherRunning operations are rejected because the app runs another one.
	OtherRunning int
	// PollsUntilDone is the number of polls before an operation is done.
	PollsUntilDone int
	// DeniedOperations, FailedOperations, CanceledOperations and ExpiredOperations end in these
	// ways. For UnknownID operations the API does not know the id.
	DeniedOperations, FailedOperations, CanceledOperations, ExpiredOperations, UnknownID int
	// ExpiredURL downloads have an invalid address. TruncatedFile downloads break off in the
	// middle. TruncatedAtLine downloads end after a line without an error. FileServerError
	// downloads get 503.
	ExpiredURL, TruncatedFile, TruncatedAtLine, FileServerError int
	// IgnoresRange: the file server returns the whole file for any range.
	IgnoresRange bool
	// WithoutSize: operations do not contain the size of their file.
	WithoutSize bool
}

// bulkState holds the operations of a shop and the address of their files.
type bulkState struct {
	url        string
	plan       BulkPlan
	operations []*bulkOperation
	files      []Request
	// leakedHeaders are received headers that the file server must never get.
	leakedHeaders []string
}

// bulkOperation is an operation.
type bulkOperation struct {
	query   document
	created int64
	polls   int
	// status is empty while it runs.
	status, code string
	file         []byte
	lines        int
	// partial: the operation failed and has a partial file.
	partial bool
}

func (f *Fake) startBulk(t fakeapi.Owner) {
	server := httptest.NewServer(http.HandlerFunc(f.serveFile))
	f.bulkState.url = server.URL
	t.Cleanup(server.Close)
}

// SetBulk changes the plan of the following bulk operations.
func (f *Fake) SetBulk(plan BulkPlan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bulkState.plan = plan
}

// RemainingBulkPlan returns the part of the plan that has not occurred yet.
func (f *Fake) RemainingBulkPlan() BulkPlan {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bulkState.plan
}

// BulkCount returns the number of started operations.
func (f *Fake) BulkCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.bulkState.operations)
}

// FileRequests returns the requests for files, whose path ends with the first requested byte. It
// also returns headers that only the shop may get.
func (f *Fake) FileRequests() (requests []Request, leaked []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.bulkState.files), slices.Clone(f.bulkState.leakedHeaders)
}

// takeOne takes one from a positive number.
func takeOne(n *int) bool {
	if *n == 0 {
		return false
	}
	*n--
	return true
}

// startBulkOperation starts an operation.
func (c *call) startBulkOperation(s selection) (any, error) {
	b := &c.fake.bulkState
	refused := func(code, message string) tree {
		return selectFields(s.sub,
			tree{"bulkOperation": nil, "userErrors": []any{tree{"code": code, "message": message}}})
	}
	if c.argumentValue(s.args["groupObjects"]) != false {
		return refused("INVALID", "this fake does not allow grouping, which is costly"), nil
	}
	text, _ := c.argumentValue(s.args["query"]).(string)
	d, err := parse("query " + text)
	if err == nil {
		d.isBulk = true
		err = d.check(nil)
	}
	if err != nil || len(d.fields) != 1 || listedKinds[d.fields[0].name] == nil {
		return refused("INVALID", fmt.Sprint("Invalid bulk query: ", err)), nil
	}
	if takeOne(&b.plan.OtherRunning) {
		return refused("OPERATION_IN_PROGRESS", "A bulk query operation for this app and shop is already in "+
			"progress: gid://shopify/BulkOperation/1."), nil
	}
	b.operations = append(b.operations, &bulkOperation{query: d, created: c.fake.now(), polls: b.plan.PollsUntilDone})
	return selectFields(s.sub, tree{"bulkOperation": tree{"id": bulkGID(len(b.operations)), "status": "CREATED"},
		"userErrors": []any{}}), nil
}

func bulkGID(n int) string { return "gid://shopify/BulkOperation/" + strconv.Itoa(4_000_000_000+n) }

// bulkStatus returns the state of an operation.
func (c *call) bulkStatus(s selection) (any, error) {
	b := &c.fake.bulkState
	id, _ := c.argumentValue(s.args["id"]).(string)
	n, _ := strconv.Atoi(strings.TrimPrefix(id, "gid://shopify/BulkOperation/"))
	n -= 4_000_000_000
	if n < 1 || n > len(b.operations) || takeOne(&b.plan.UnknownID) {
		return nil, nil
	}
	one := b.operations[n-1]
	if one.status == "" {
		if one.polls--; one.polls < 0 {
			c.finishBulk(one)
		}
	}
	out := tree{"id": id, "type": "QUERY", "status": one.status, "errorCode": nil,
		"createdAt": time.UnixMicro(one.created).UTC().Format(time.RFC3339), "completedAt": nil, "url": nil,
		"partialDataUrl": nil,
		"fileSize":       nil, "objectCount": strconv.Itoa(one.lines), "rootObjectCount": strconv.Itoa(one.lines)}
	where := fmt.Sprintf("%s/files/%d.jsonl?signature=secret%d", b.url, n, n)
	switch {
	case one.status == "":
		out["status"] = "RUNNING"
	case one.partial:
		out["errorCode"], out["partialDataUrl"] = one.code, where
	case one.status == "COMPLETED" && one.lines > 0:
		out["url"] = where
		if !b.plan.WithoutSize {
			out["fileSize"] = strconv.Itoa(len(one.file))
		}
	}
	return selectFields(s.sub, out), nil
}

// finishBulk ends an operation with the current objects.
func (c *call) finishBulk(one *bulkOperation) {
	plan := &c.fake.bulkState.plan
	err := c.writeFile(one)
	switch {
	case err != nil, takeOne(&plan.DeniedOperations):
		one.status, one.code, one.partial = "FAILED", "ACCESS_DENIED", true
	case takeOne(&plan.FailedOperations):
		one.status, one.code, one.partial = "FAILED", "INTERNAL_SERVER_ERROR", true
	case takeOne(&plan.CanceledOperations):
		one.status = "CANCELED"
	case takeOne(&plan.ExpiredOperations):
		one.status = "EXPIRED"
	default:
		one.status = "COMPLETED"
	}
	if one.partial {
		one.file = one.file[:len(one.file)/2]
	}
}

// writeFile writes the file: one node per line, followed by the nodes below it.
func (c *call) writeFile(one *bulkOperation) error {
	var out bytes.Buffer
	line := func(n tree) {
		one.lines++
		out.Write(bytes.ReplaceAll(text(n), []byte("/"), []byte(`\/`))) // as Shopify writes it
		out.WriteByte('\n')
	}
	root := one.query.fields[0]
	k := listedKinds[root.name]
	if err := c.requireScope(k); err != nil {
		return err
	}
	for _, o := range c.visibleObjects(k, c.now) {
		if isFilteredOut(root, o) {
			continue
		}
		own, below := splitConnection(root.sub[0].sub[0].sub)
		n, err := c.node(own, o)
		if err != nil {
			return err
		}
		line(n)
		if below == nil {
			continue
		}
		if err := c.requireScope(kindOf("inventory_level")); err != nil {
			return err
		}
		for _, l := range c.levelsAt(o.object, c.now) {
			n, err := c.node(below.sub[0].sub[0].sub, l)
			if err != nil {
				return err
			}
			n["__parentId"] = o.object.gid()
			line(n)
		}
	}
	one.file = out.Bytes()
	return nil
}

// splitConnection separates the connection from the other fields of a node.
func splitConnection(fields []selection) (own []selection, below *selection) {
	for i := range fields {
		if fields[i].name == "inventoryLevels" {
			below = &fields[i]
			continue
		}
		own = append(own, fields[i])
	}
	return own, below
}

// serveFile returns a part of a file, as a host that has no access to the shop.
func (f *Fake) serveFile(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := &f.bulkState
	for _, name := range []string{"X-Shopify-Access-Token", "Authorization", "Cookie", "Referer"} {
		if v := r.Header.Get(name); v != "" {
			b.leakedHeaders = append(b.leakedHeaders, name+": "+v)
		}
	}
	from, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(r.Header.Get("Range"), "bytes="), "-"))
	n, bad := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/files/"), ".jsonl"))
	record := Request{At: time.Now(), Method: r.Method, Path: fmt.Sprintf("%s %d", r.URL.Path, from),
		Status: http.StatusPartialContent}
	defer func() { b.files = append(b.files, record) }()
	switch {
	case err != nil || bad != nil || n < 1 || n > len(b.operations) || r.Header.Get("Accept-Encoding") != "identity" ||
		r.URL.RawQuery != fmt.Sprintf("signature=secret%d", n):
		record.Status = http.StatusForbidden
	case takeOne(&b.plan.ExpiredURL):
		record.Status = http.StatusBadRequest // ExpiredToken
	case takeOne(&b.plan.FileServerError):
		record.Status = http.StatusServiceUnavailable
	case from > len(b.operations[n-1].file):
		record.Status = http.StatusRequestedRangeNotSatisfiable
	}
	if record.Status >= 400 {
		w.WriteHeader(record.Status)
		return
	}
	file := b.operations[n-1].file
	if b.plan.IgnoresRange {
		from, record.Status = 0, http.StatusOK
	} else {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(file)-1, len(file)))
	}
	part := file[from:]
	cut, short := takeOne(&b.plan.TruncatedFile), false
	if !cut {
		short = takeOne(&b.plan.TruncatedAtLine)
	}
	w.Header().Set("Content-Type", "application/jsonl")
	if !short {
		w.Header().Set("Content-Length", strconv.Itoa(len(part)))
	}
	if cut || short {
		part = part[:len(part)*2/3]
	}
	if short { // after a whole line, where the end is not noticeable
		part = part[:bytes.LastIndexByte(part, '\n')+1]
	}
	w.WriteHeader(record.Status)
	_ = http.NewResponseController(w).Flush()
	_, _ = w.Write(part) // less data than announced breaks the connection
}

// selectFields returns the requested fields of a node.
func selectFields(fields []selection, from tree) tree {
	out := tree{}
	for _, s := range fields {
		v := from[s.name]
		switch below := v.(type) {
		case tree:
			v = selectFields(s.sub, below)
		case []any:
			list := []any{}
			for _, one := range below {
				list = append(list, selectFields(s.sub, one.(tree)))
			}
			v = list
		}
		out[s.alias] = v
	}
	return out
}
