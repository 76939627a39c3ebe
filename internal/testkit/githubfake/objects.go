package githubfake

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"
)

type tree = map[string]any

// repo is a repository.
type repo struct {
	name       string
	hook       int64
	lastNumber int64
	object     *object
}

func (r *repo) fullName() string { return Owner + "/" + r.name }

// object is an object in a repository, or the repository itself.
type object struct {
	kind   string // the object type of the mirror
	id     int64
	number int64
	repo   *repo
	// path is the path below the repository.
	path string
	// transferredTo is the new issue of a transferred issue.
	transferredTo *object
	// states are the states with their times in microseconds, oldest first.
	states []state
}

type state struct {
	at   int64
	body tree // nil: deleted
}

// stateAt returns the state at a time, or nil.
func (o *object) stateAt(now int64) tree {
	for i := len(o.states) - 1; i >= 0; i-- {
		if o.states[i].at <= now {
			return o.states[i].body
		}
	}
	return nil
}

func (o *object) current() tree { return o.states[len(o.states)-1].body }

func (o *object) isDeleted() bool { return o.current() == nil }

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // the value consists of texts and numbers
	}
	return b
}

func user() tree {
	return tree{"login": "mona-fake", "id": 77, "type": "User", "site_admin": false}
}

// address returns the URL of an object in the API.
func (f *Fake) address(r *repo, below string) string { return f.URL + "/repos/" + r.fullName() + below }

// create creates an object with its first state.
func (f *Fake) create(r *repo, kind, list string, body tree) *object {
	o := &object{kind: kind, id: f.nextID(), repo: r}
	switch kind {
	case "issue", "milestone", "pull_request":
		r.lastNumber++
		o.number = r.lastNumber
		o.path = fmt.Sprintf("%s/%d", list, o.number)
		body["number"] = o.number
	case "repository":
	default:
		o.path = fmt.Sprintf("%s/%d", list, o.id)
	}
	now := f.now()
	maps.Copy(body, tree{"id": o.id, "node_id": fmt.Sprintf("N_%d", o.id), "url": f.address(r, o.path),
		"created_at": stamp(now), "updated_at": stamp(now)})
	o.states = []state{{now, body}}
	f.objects = append(f.objects, o)
	return o
}

// createRepository creates a repository with its webhook.
func (f *Fake) createRepository(name string) {
	r := &repo{name: name, hook: f.nextID()}
	r.object = f.create(r, "repository", "", tree{"name": name, "full_name": r.fullName(), "private": true,
		"owner": tree{"login": Owner, "id": 7, "type": "Organization"}, "description": "boils water",
		"default_branch": "main", "archived": false, "open_issues_count": 0, "stargazers_count": 3})
	f.repos = append(f.repos, r)
	f.sendCurrent(r.object, "repository", "created", nil)
}

// update changes an object and advances its version.
func (f *Fake) update(o *object, change tree) {
	now := f.now()
	body := maps.Clone(o.current())
	maps.Copy(body, tree{"updated_at": stamp(now)})
	maps.Copy(body, change)
	o.states = append(o.states, state{now, body})
}

// issue opens an issue.
func (f *Fake) issue(r *repo) *object {
	o := f.create(r, "issue", "/issues", tree{"title": f.randomWord(), "body": "there is a puddle", "state": "open",
		"state_reason": nil, "locked": false, "user": user(), "labels": []any{}, "assignee": nil, "comments": 0,
		"closed_at": nil, "author_association": "MEMBER", "repository_url": f.address(r, ""),
		"performed_via_github_app": nil})
	f.sendCurrent(o, "issues", "opened", nil)
	return o
}

// pull opens a pull request, which is also an issue with another id.
func (f *Fake) pull(r *repo) *object {
	o := f.create(r, "pull_request", "/pulls", tree{"title": f.randomWord(), "body": "a seal", "state": "open",
		"draft":  false,
		"locked": false, "user": user(), "merged": false, "merged_at": nil, "merge_commit_sha": nil,
		"closed_at": nil, "mergeable": nil, "mergeable_state": "unknown", "comments": 0, "commits": 1, "additions": 3,
		"author_association": "MEMBER",
		"head":               tree{"ref": "seal", "sha": "1d"}, "base": tree{"ref": "main", "sha": "1c"}})
	f.sendCurrent(o, "pull_request", "opened", tree{"number": o.number})
	return o
}

func (f *Fake) release(r *repo) *object {
	o := f.create(r, "release", "/releases", tree{"tag_name": f.randomWord(), "name": "a release", "body": "tea",
		"draft": false, "prerelease": false, "author": user(), "assets": []any{},
		"published_at": stamp(f.now())})
	f.sendCurrent(o, "release", "published", nil)
	return o
}

func (f *Fake) randomWord() string { return fmt.Sprintf("w%d", f.choose.IntN(1_000_000)) }

// events are the webhook event names of object kinds with another name.
var events = map[string]string{"issue": "issues"}

// eventName returns the webhook event name of an object kind.
func eventName(kind string) string {
	if name, ok := events[kind]; ok {
		return name
	}
	return kind
}

// edit changes a text of an object. The webhook contains the old text.
func (f *Fake) edit(o *object) {
	field := map[string]string{"issue": "title", "milestone": "title", "pull_request": "title", "release": "name",
		"repository": "description"}[o.kind]
	if field == "" {
		field = "body"
	}
	old := o.current()[field]
	f.update(o, tree{field: f.randomWord()})
	rest := tree{"changes": tree{field: tree{"from": old}}}
	if o.kind == "pull_request" {
		rest["number"] = o.number
	}
	f.sendCurrent(o, eventName(o.kind), "edited", f.addRelated(o, rest))
}

// toggle closes or reopens an object.
func (f *Fake) toggle(o *object) {
	action, change := "closed", tree{"state": "closed", "closed_at": stamp(f.now())}
	if o.current()["state"] == "closed" {
		action, change = "reopened", tree{"state": "open", "closed_at": nil}
	}
	rest := tree{}
	if o.kind == "pull_request" {
		rest["number"] = o.number
	}
	f.update(o, change)
	f.sendCurrent(o, eventName(o.kind), action, rest)
}

// comment comments on an issue. The version of the issue advances without an event of the issue.
func (f *Fake) comment(o *object) {
	n, _ := o.current()["comments"].(int)
	f.update(o, tree{"comments": n + 1})
	c := f.create(o.repo, "issue_comment", "/issues/comments", tree{"body": f.randomWord(), "user": user(),
		"issue_url": f.address(o.repo, o.path), "author_association": "MEMBER"})
	f.sendCurrent(c, "issue_comment", "created", tree{"issue": o.current()})
}

// remove deletes an object permanently.
func (f *Fake) remove(o *object) {
	body := o.current()
	o.states = append(o.states, state{f.now(), nil})
	f.send(o, body, eventName(o.kind), "deleted", f.addRelated(o, tree{}))
}

// transfer moves an issue to another repository: the issue ends, and a new one opens there.
func (f *Fake) transfer(o *object) {
	to := f.repos[f.choose.IntN(len(f.repos))]
	if to == o.repo {
		return
	}
	body := o.current()
	o.states = append(o.states, state{f.now(), nil})
	f.send(o, body, "issues", "transferred", tree{"changes": tree{"new_issue": tree{"id": f.lastID + 1}}})
	o.transferredTo = f.issue(to)
}

// Step moves the clock and makes one change.
func (f *Fake) Step() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Advance(time.Duration(f.choose.Int64N(f.options.Gap.Microseconds())) * time.Microsecond)
	f.step()
}

func (f *Fake) step() {
	living := f.changingObjects()
	if len(living) < f.options.Objects {
		r := f.repos[f.choose.IntN(len(f.repos))]
		[]func(*repo) *object{f.issue, f.issue, f.pull, f.release}[f.choose.IntN(4)](r)
		return
	}
	o := living[f.choose.IntN(len(living))]
	switch n := f.choose.IntN(100); {
	case o.kind == "issue" && f.chance(f.options.Comments):
		f.comment(o)
	case o.kind == "issue" && n < 4 && !f.options.WithoutTransfers:
		f.transfer(o)
	case n < 8 && o.kind != "repository" && o.kind != "pull_request":
		f.remove(o)
	case n < 40 && (o.kind == "issue" || o.kind == "pull_request"):
		f.toggle(o)
	default:
		f.edit(o)
	}
}

// changingObjects returns the objects that steps change.
func (f *Fake) changingObjects() (living []*object) {
	for _, o := range f.objects {
		if !o.isDeleted() && o.kind != "issue_comment" {
			living = append(living, o)
		}
	}
	return living
}

// RunSteps executes n steps.
func (f *Fake) RunSteps(n int) {
	for range n {
		f.Step()
	}
}

// Object is the current state of an object.
type Object struct {
	// Type and ID are those of the mirror.
	Type, ID string
	// Repository is the full name of its repository.
	Repository string
	// Body is the body in webhooks. Nil means deleted.
	Body []byte
	// Changed is the time of the last change, and Path the path in the API.
	Changed time.Time
	Path    string
}

// CurrentObjects returns the current state of every object, including deleted ones.
func (f *Fake) CurrentObjects() (all []Object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.objects {
		t := Object{Type: o.kind, ID: fmt.Sprint(o.id), Repository: o.repo.fullName(),
			Changed: time.UnixMicro(o.states[len(o.states)-1].at).UTC(), Path: "/repos/" + o.repo.fullName() + o.path}
		if !o.isDeleted() {
			t.Body = encode(o.current())
		}
		all = append(all, t)
	}
	return all
}

// OpenIssue opens an issue in a repository, counted from 0, and returns its id.
func (f *Fake) OpenIssue(repository int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprint(f.issue(f.repos[repository]).id)
}

// explicitKinds are kinds that steps do not create, with their list and body.
var explicitKinds = map[string]struct {
	list string
	body tree
}{
	"milestone": {"/milestones", tree{"state": "open", "title": "tea time", "open_issues": 0,
		"closed_issues": 0, "due_on": nil}},
	"deployment": {"/deployments", tree{"sha": "1d", "ref": "main", "task": "deploy",
		"environment": "kitchen", "payload": "", "description": nil}},
	"commit_comment": {"/comments", tree{"body": "nice", "commit_id": "1d", "path": nil, "line": nil,
		"position": nil, "author_association": "MEMBER"}},
	"pull_request_review_comment": {"/pulls/comments", tree{"body": "a seal?", "commit_id": "1d", "path": "lid.go",
		"line": 3, "position": 3, "author_association": "MEMBER", "pull_request_review_id": 5}},
}

// CreateOfKind creates an object of explicitKinds in a repository, counted from 0, and returns its
// id.
func (f *Fake) CreateOfKind(repository int, kind string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.create(f.repos[repository], kind, explicitKinds[kind].list, maps.Clone(explicitKinds[kind].body))
	f.sendCurrent(o, kind, "created", f.addRelated(o, tree{}))
	return fmt.Sprint(o.id)
}

// addRelated adds the related objects that events of a kind contain.
func (f *Fake) addRelated(o *object, rest tree) tree {
	switch o.kind {
	case "issue_comment":
		rest["issue"] = tree{"id": f.lastID}
	case "pull_request_review_comment":
		rest["pull_request"] = tree{"id": f.lastID}
	}
	return rest
}

// OpenPullRequest opens a pull request in a repository, counted from 0, and returns its id.
func (f *Fake) OpenPullRequest(repository int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprint(f.pull(f.repos[repository]).id)
}

// CreateDraft creates a draft release in a repository and returns its id. Only WriteKey sees it.
func (f *Fake) CreateDraft(repository int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.create(f.repos[repository], "release", "/releases", tree{"tag_name": f.randomWord(), "name": "a draft",
		"body": "tea", "draft": true, "prerelease": false, "author": user(), "assets": []any{},
		"published_at": nil})
	f.sendCurrent(o, "release", "created", nil)
	return fmt.Sprint(o.id)
}

// Publish publishes a draft release.
func (f *Fake) Publish(id string) {
	f.withObject(id, func(o *object) {
		f.update(o, tree{"draft": false, "published_at": stamp(f.now())})
		f.sendCurrent(o, "release", "published", nil)
	})
}

// Unpublish makes a release a draft again.
func (f *Fake) Unpublish(id string) {
	f.withObject(id, func(o *object) {
		f.update(o, tree{"draft": true, "published_at": nil})
		f.sendCurrent(o, "release", "unpublished", nil)
	})
}

// Edit changes a text of an object.
func (f *Fake) Edit(id string) { f.withObject(id, f.edit) }

// Comment comments on an issue.
func (f *Fake) Comment(id string) { f.withObject(id, f.comment) }

// Delete deletes an object permanently.
func (f *Fake) Delete(id string) { f.withObject(id, f.remove) }

// Transfer moves an issue to another repository. There must be several.
func (f *Fake) Transfer(id string) {
	f.withObject(id, func(o *object) {
		for o.transferredTo == nil {
			f.transfer(o)
		}
	})
}

// Rename renames the first repository. Old addresses redirect to the new ones.
func (f *Fake) Rename(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.repos[0]
	r.name = name
	f.update(r.object, tree{"name": name, "full_name": r.fullName(), "url": f.address(r, "")})
}

func (f *Fake) withObject(id string, do func(*object)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.objects {
		if fmt.Sprint(o.id) == id && !o.isDeleted() {
			do(o)
			return
		}
	}
	panic("githubfake: no living object " + id)
}
