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

// Bulk says how the next bulk operations fare: each number is of how many, and one that is used up is 0. The zero value: each is done when it is asked for.
type Bulk struct {
	// Others are refused, since the app runs another one.
	Others int
	// Running is how often an operation is asked for before it is done.
	Running int
	// Denied, Failed, Canceled and Expired are how those end that are done, and Forgotten are asked for as if they had never been.
	Denied, Failed, Canceled, Expired, Forgotten int
	// Gone are downloads whose address is good no more, Cut such that break off in the middle, Short such that end behind a line as if that were the end, and Broken such that are answered 503.
	Gone, Cut, Short, Broken int
	// Unranged: the file's server answers the whole file whatever part is asked for.
	Unranged bool
	// Sizeless: operations do not tell the size of their file.
	Sizeless bool
}

// bulks are the operations of a shop, and where their files lie.
type bulks struct {
	url   string
	plan  Bulk
	all   []*bulk
	files []Request
	// leaked are headers that the files' server must never see.
	leaked []string
}

// bulk is an operation.
type bulk struct {
	query   document
	created int64
	polls   int
	// status is empty while it runs.
	status, code string
	file         []byte
	lines        int
	// partial is where a failed one has written what it had.
	partial bool
}

func (f *Fake) startBulk(t fakeapi.Owner) {
	server := httptest.NewServer(http.HandlerFunc(f.serveFile))
	f.bulks.url = server.URL
	t.Cleanup(server.Close)
}

// SetBulk says how bulk operations fare from now on.
func (f *Fake) SetBulk(plan Bulk) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bulks.plan = plan
}

// BulkPlan is what of that has not happened yet.
func (f *Fake) BulkPlan() Bulk {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bulks.plan
}

// Bulks is how many operations were begun.
func (f *Fake) Bulks() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.bulks.all)
}

// Downloads are the requests for files; their path ends in the first byte that was asked for. Leaked are headers of theirs that nobody but the shop may see.
func (f *Fake) Downloads() (requests []Request, leaked []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.bulks.files), slices.Clone(f.bulks.leaked)
}

// used takes one of a number.
func used(n *int) bool {
	if *n == 0 {
		return false
	}
	*n--
	return true
}

// runBulk begins an operation.
func (c *call) runBulk(s selection) (any, error) {
	b := &c.fake.bulks
	refused := func(code, message string) tree {
		return pick(s.sub, tree{"bulkOperation": nil, "userErrors": []any{tree{"code": code, "message": message}}})
	}
	if c.value(s.args["groupObjects"]) != false {
		return refused("INVALID", "grouping is costly: here it is a mistake"), nil
	}
	text, _ := c.value(s.args["query"]).(string)
	d, err := parse("query " + text)
	if err == nil {
		d.bulk = true
		err = d.check(nil)
	}
	if err != nil || len(d.fields) != 1 || listed[d.fields[0].name] == nil {
		return refused("INVALID", fmt.Sprint("Invalid bulk query: ", err)), nil
	}
	if used(&b.plan.Others) {
		return refused("OPERATION_IN_PROGRESS", "A bulk query operation for this app and shop is already in progress: gid://shopify/BulkOperation/1."), nil
	}
	b.all = append(b.all, &bulk{query: d, created: c.fake.now(), polls: b.plan.Running})
	return pick(s.sub, tree{"bulkOperation": tree{"id": bulkGID(len(b.all)), "status": "CREATED"}, "userErrors": []any{}}), nil
}

func bulkGID(n int) string { return "gid://shopify/BulkOperation/" + strconv.Itoa(4_000_000_000+n) }

// bulk answers what an operation has come to.
func (c *call) bulk(s selection) (any, error) {
	b := &c.fake.bulks
	id, _ := c.value(s.args["id"]).(string)
	n, _ := strconv.Atoi(strings.TrimPrefix(id, "gid://shopify/BulkOperation/"))
	n -= 4_000_000_000
	if n < 1 || n > len(b.all) || used(&b.plan.Forgotten) {
		return nil, nil
	}
	one := b.all[n-1]
	if one.status == "" {
		if one.polls--; one.polls < 0 {
			c.finish(one)
		}
	}
	out := tree{"id": id, "type": "QUERY", "status": one.status, "errorCode": nil, "createdAt": time.UnixMicro(one.created).UTC().Format(time.RFC3339), "completedAt": nil, "url": nil, "partialDataUrl": nil,
		"fileSize": nil, "objectCount": strconv.Itoa(one.lines), "rootObjectCount": strconv.Itoa(one.lines)}
	where := fmt.Sprintf("%s/files/%d.jsonl?signature=secret%d", b.url, n, n)
	switch {
	case one.status == "":
		out["status"] = "RUNNING"
	case one.partial:
		out["errorCode"], out["partialDataUrl"] = one.code, where
	case one.status == "COMPLETED" && one.lines > 0:
		out["url"] = where
		if !b.plan.Sizeless {
			out["fileSize"] = strconv.Itoa(len(one.file))
		}
	}
	return pick(s.sub, out), nil
}

// finish ends an operation, with what there is now.
func (c *call) finish(one *bulk) {
	plan := &c.fake.bulks.plan
	err := c.write(one)
	switch {
	case err != nil, used(&plan.Denied):
		one.status, one.code, one.partial = "FAILED", "ACCESS_DENIED", true
	case used(&plan.Failed):
		one.status, one.code, one.partial = "FAILED", "INTERNAL_SERVER_ERROR", true
	case used(&plan.Canceled):
		one.status = "CANCELED"
	case used(&plan.Expired):
		one.status = "EXPIRED"
	default:
		one.status = "COMPLETED"
	}
	if one.partial {
		one.file = one.file[:len(one.file)/2]
	}
}

// write makes the file: a node a line, and what is below a node behind it.
func (c *call) write(one *bulk) error {
	var out bytes.Buffer
	line := func(n tree) {
		one.lines++
		out.Write(bytes.ReplaceAll(text(n), []byte("/"), []byte(`\/`))) // as Shopify writes it
		out.WriteByte('\n')
	}
	field := one.query.fields[0]
	k := listed[field.name]
	if err := c.mayGraph(k); err != nil {
		return err
	}
	for _, o := range c.visible(k, c.now) {
		if leftOut(field, o) {
			continue
		}
		own, below := split(field.sub[0].sub[0].sub)
		n, err := c.node(own, o)
		if err != nil {
			return err
		}
		line(n)
		if below == nil {
			continue
		}
		if err := c.mayGraph(kindOf("inventory_level")); err != nil {
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

// split takes the connection out of the fields of a node.
func split(fields []selection) (own []selection, below *selection) {
	for i := range fields {
		if fields[i].name == "inventoryLevels" {
			below = &fields[i]
			continue
		}
		own = append(own, fields[i])
	}
	return own, below
}

// serveFile answers a part of a file, as another host does that knows nothing of the shop.
func (f *Fake) serveFile(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := &f.bulks
	for _, name := range []string{"X-Shopify-Access-Token", "Authorization", "Cookie", "Referer"} {
		if v := r.Header.Get(name); v != "" {
			b.leaked = append(b.leaked, name+": "+v)
		}
	}
	from, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(r.Header.Get("Range"), "bytes="), "-"))
	n, bad := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/files/"), ".jsonl"))
	answer := Request{At: time.Now(), Method: r.Method, Path: fmt.Sprintf("%s %d", r.URL.Path, from), Status: http.StatusPartialContent}
	defer func() { b.files = append(b.files, answer) }()
	switch {
	case err != nil || bad != nil || n < 1 || n > len(b.all) || r.Header.Get("Accept-Encoding") != "identity" || r.URL.RawQuery != fmt.Sprintf("signature=secret%d", n):
		answer.Status = http.StatusForbidden
	case used(&b.plan.Gone):
		answer.Status = http.StatusBadRequest // ExpiredToken
	case used(&b.plan.Broken):
		answer.Status = http.StatusServiceUnavailable
	case from > len(b.all[n-1].file):
		answer.Status = http.StatusRequestedRangeNotSatisfiable
	}
	if answer.Status >= 400 {
		w.WriteHeader(answer.Status)
		return
	}
	file := b.all[n-1].file
	if b.plan.Unranged {
		from, answer.Status = 0, http.StatusOK
	} else {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(file)-1, len(file)))
	}
	part := file[from:]
	cut, short := used(&b.plan.Cut), false
	if !cut {
		short = used(&b.plan.Short)
	}
	w.Header().Set("Content-Type", "application/jsonl")
	if !short {
		w.Header().Set("Content-Length", strconv.Itoa(len(part)))
	}
	if cut || short {
		part = part[:len(part)*2/3]
	}
	if short { // behind a whole line, where nothing shows it
		part = part[:bytes.LastIndexByte(part, '\n')+1]
	}
	w.WriteHeader(answer.Status)
	_ = http.NewResponseController(w).Flush()
	_, _ = w.Write(part) // less than was promised breaks the connection off
}

// pick is what of a node is asked for.
func pick(fields []selection, from tree) tree {
	out := tree{}
	for _, s := range fields {
		v := from[s.name]
		switch below := v.(type) {
		case tree:
			v = pick(s.sub, below)
		case []any:
			list := []any{}
			for _, one := range below {
				list = append(list, pick(s.sub, one.(tree)))
			}
			v = list
		}
		out[s.alias] = v
	}
	return out
}
