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
	name    string
	hook    int64
	numbers int64
	self    *object
}

func (r *repo) fullName() string { return Owner + "/" + r.name }

// object is something in a repository, or the repository itself.
type object struct {
	kind   string // as the mirror calls it
	id     int64
	number int64
	repo   *repo
	// below is what follows the repository's address.
	below string
	// moved is where an issue is that was transferred.
	moved *object
	// states are what it was, and since when in microseconds; the oldest first.
	states []state
}

type state struct {
	at   int64
	body tree // nil: it is gone
}

// at is the state at a time, nil where there is none.
func (o *object) at(now int64) tree {
	for i := len(o.states) - 1; i >= 0; i-- {
		if o.states[i].at <= now {
			return o.states[i].body
		}
	}
	return nil
}

func (o *object) last() tree { return o.states[len(o.states)-1].body }

func (o *object) gone() bool { return o.last() == nil }

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // it is made of texts and numbers
	}
	return b
}

func user() tree {
	return tree{"login": "mona-fake", "id": 77, "type": "User", "site_admin": false}
}

// address is an object's in the API.
func (f *Fake) address(r *repo, below string) string { return f.URL + "/repos/" + r.fullName() + below }

// make makes an object and its first state.
func (f *Fake) make(r *repo, kind, list string, body tree) *object {
	o := &object{kind: kind, id: f.id(), repo: r}
	switch kind {
	case "issue", "milestone", "pull_request":
		r.numbers++
		o.number = r.numbers
		o.below = fmt.Sprintf("%s/%d", list, o.number)
		body["number"] = o.number
	case "repository":
	default:
		o.below = fmt.Sprintf("%s/%d", list, o.id)
	}
	now := f.now()
	maps.Copy(body, tree{"id": o.id, "node_id": fmt.Sprintf("N_%d", o.id), "url": f.address(r, o.below), "created_at": stamp(now), "updated_at": stamp(now)})
	o.states = []state{{now, body}}
	f.all = append(f.all, o)
	return o
}

// found makes a repository with its webhook.
func (f *Fake) found(name string) {
	r := &repo{name: name, hook: f.id()}
	r.self = f.make(r, "repository", "", tree{"name": name, "full_name": r.fullName(), "private": true, "owner": tree{"login": Owner, "id": 7, "type": "Organization"}, "description": "boils water",
		"default_branch": "main", "archived": false, "open_issues_count": 0, "stargazers_count": 3})
	f.repos = append(f.repos, r)
	f.tell(r.self, "repository", "created", nil)
}

// set changes an object; its version moves.
func (f *Fake) set(o *object, change tree) {
	now := f.now()
	body := maps.Clone(o.last())
	maps.Copy(body, tree{"updated_at": stamp(now)})
	maps.Copy(body, change)
	o.states = append(o.states, state{now, body})
}

// issue opens an issue.
func (f *Fake) issue(r *repo) *object {
	o := f.make(r, "issue", "/issues", tree{"title": f.word(), "body": "there is a puddle", "state": "open", "state_reason": nil, "locked": false, "user": user(), "labels": []any{}, "assignee": nil, "comments": 0,
		"closed_at": nil, "author_association": "MEMBER", "repository_url": f.address(r, ""), "performed_via_github_app": nil})
	f.tell(o, "issues", "opened", nil)
	return o
}

// pull opens a pull request, which is an issue too, under another id.
func (f *Fake) pull(r *repo) *object {
	o := f.make(r, "pull_request", "/pulls", tree{"title": f.word(), "body": "a seal", "state": "open", "draft": false, "locked": false, "user": user(), "merged": false, "merged_at": nil, "merge_commit_sha": nil,
		"closed_at": nil, "mergeable": nil, "mergeable_state": "unknown", "comments": 0, "commits": 1, "additions": 3, "author_association": "MEMBER",
		"head": tree{"ref": "seal", "sha": "1d"}, "base": tree{"ref": "main", "sha": "1c"}})
	f.tell(o, "pull_request", "opened", tree{"number": o.number})
	return o
}

func (f *Fake) release(r *repo) *object {
	o := f.make(r, "release", "/releases", tree{"tag_name": f.word(), "name": "a release", "body": "tea", "draft": false, "prerelease": false, "author": user(), "assets": []any{},
		"published_at": stamp(f.now())})
	f.tell(o, "release", "published", nil)
	return o
}

func (f *Fake) word() string { return fmt.Sprintf("w%d", f.choose.IntN(1_000_000)) }

// events are the names under which webhooks tell of objects.
var events = map[string]string{"issue": "issues"}

// event is the name under which webhooks tell of objects of a kind.
func event(kind string) string {
	if name, ok := events[kind]; ok {
		return name
	}
	return kind
}

// edit changes a text of an object, which the webhook tells with what it was.
func (f *Fake) edit(o *object) {
	field := map[string]string{"issue": "title", "milestone": "title", "pull_request": "title", "release": "name", "repository": "description"}[o.kind]
	if field == "" {
		field = "body"
	}
	old := o.last()[field]
	f.set(o, tree{field: f.word()})
	rest := tree{"changes": tree{field: tree{"from": old}}}
	if o.kind == "pull_request" {
		rest["number"] = o.number
	}
	f.tell(o, event(o.kind), "edited", f.beside(o, rest))
}

// toggle closes or opens again.
func (f *Fake) toggle(o *object) {
	action, change := "closed", tree{"state": "closed", "closed_at": stamp(f.now())}
	if o.last()["state"] == "closed" {
		action, change = "reopened", tree{"state": "open", "closed_at": nil}
	}
	rest := tree{}
	if o.kind == "pull_request" {
		rest["number"] = o.number
	}
	f.set(o, change)
	f.tell(o, event(o.kind), action, rest)
}

// comment comments on an issue: the issue's version moves, and no event of the issue tells it.
func (f *Fake) comment(o *object) {
	n, _ := o.last()["comments"].(int)
	f.set(o, tree{"comments": n + 1})
	c := f.make(o.repo, "issue_comment", "/issues/comments", tree{"body": f.word(), "user": user(), "issue_url": f.address(o.repo, o.below), "author_association": "MEMBER"})
	f.tell(c, "issue_comment", "created", tree{"issue": o.last()})
}

// remove deletes an object for good.
func (f *Fake) remove(o *object) {
	body := o.last()
	o.states = append(o.states, state{f.now(), nil})
	f.send(o, body, event(o.kind), "deleted", f.beside(o, tree{}))
}

// transfer moves an issue to another repository: this one ends, and another one opens there.
func (f *Fake) transfer(o *object) {
	to := f.repos[f.choose.IntN(len(f.repos))]
	if to == o.repo {
		return
	}
	body := o.last()
	o.states = append(o.states, state{f.now(), nil})
	f.send(o, body, "issues", "transferred", tree{"changes": tree{"new_issue": tree{"id": f.ids + 1}}})
	o.moved = f.issue(to)
}

// Step lets something happen.
func (f *Fake) Step() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.Advance(time.Duration(f.choose.Int64N(f.options.Gap.Microseconds())) * time.Microsecond)
	f.step()
}

func (f *Fake) step() {
	living := f.living()
	if len(living) < f.options.Objects {
		r := f.repos[f.choose.IntN(len(f.repos))]
		[]func(*repo) *object{f.issue, f.issue, f.pull, f.release}[f.choose.IntN(4)](r)
		return
	}
	o := living[f.choose.IntN(len(living))]
	switch n := f.choose.IntN(100); {
	case o.kind == "issue" && f.chance(f.options.Comments):
		f.comment(o)
	case o.kind == "issue" && n < 4 && !f.options.Rooted:
		f.transfer(o)
	case n < 8 && o.kind != "repository" && o.kind != "pull_request":
		f.remove(o)
	case n < 40 && (o.kind == "issue" || o.kind == "pull_request"):
		f.toggle(o)
	default:
		f.edit(o)
	}
}

// living are the objects that go on changing.
func (f *Fake) living() (living []*object) {
	for _, o := range f.all {
		if !o.gone() && o.kind != "issue_comment" {
			living = append(living, o)
		}
	}
	return living
}

// Live lets n things happen.
func (f *Fake) Live(n int) {
	for range n {
		f.Step()
	}
}

// Truth is an object as it is.
type Truth struct {
	// Type and ID name it as the mirror does.
	Type, ID string
	// Repository is the full name of the one that it is in.
	Repository string
	// Body is what webhooks tell of it; nil where it is gone.
	Body []byte
	// Changed is when it changed last, and Path where the API reads it.
	Changed time.Time
	Path    string
}

// Truth is all objects that there ever were, as they are now.
func (f *Fake) Truth() (all []Truth) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.all {
		t := Truth{Type: o.kind, ID: fmt.Sprint(o.id), Repository: o.repo.fullName(), Changed: time.UnixMicro(o.states[len(o.states)-1].at).UTC(), Path: "/repos/" + o.repo.fullName() + o.below}
		if !o.gone() {
			t.Body = encode(o.last())
		}
		all = append(all, t)
	}
	return all
}

// Open opens an issue in a repository, counted from 0, and names it.
func (f *Fake) Open(repository int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprint(f.issue(f.repos[repository]).id)
}

// rare are kinds of which the fake's own life has none: where they are listed, and what they are.
var rare = map[string]struct {
	list string
	body tree
}{
	"milestone":                   {"/milestones", tree{"state": "open", "title": "tea time", "open_issues": 0, "closed_issues": 0, "due_on": nil}},
	"deployment":                  {"/deployments", tree{"sha": "1d", "ref": "main", "task": "deploy", "environment": "kitchen", "payload": "", "description": nil}},
	"commit_comment":              {"/comments", tree{"body": "nice", "commit_id": "1d", "path": nil, "line": nil, "position": nil, "author_association": "MEMBER"}},
	"pull_request_review_comment": {"/pulls/comments", tree{"body": "a seal?", "commit_id": "1d", "path": "lid.go", "line": 3, "position": 3, "author_association": "MEMBER", "pull_request_review_id": 5}},
}

// Make makes an object of a rare kind in a repository, counted from 0, and names it.
func (f *Fake) Make(repository int, kind string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.make(f.repos[repository], kind, rare[kind].list, maps.Clone(rare[kind].body))
	f.tell(o, kind, "created", f.beside(o, tree{}))
	return fmt.Sprint(o.id)
}

// beside adds to a body what events of a kind have besides.
func (f *Fake) beside(o *object, rest tree) tree {
	switch o.kind {
	case "issue_comment":
		rest["issue"] = tree{"id": f.ids}
	case "pull_request_review_comment":
		rest["pull_request"] = tree{"id": f.ids}
	}
	return rest
}

// Pull opens a pull request in a repository, counted from 0, and names it.
func (f *Fake) Pull(repository int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return fmt.Sprint(f.pull(f.repos[repository]).id)
}

// Draft makes a release that is not public yet, in a repository, and names it. Only WriteKey sees it.
func (f *Fake) Draft(repository int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.make(f.repos[repository], "release", "/releases", tree{"tag_name": f.word(), "name": "a draft", "body": "tea", "draft": true, "prerelease": false, "author": user(), "assets": []any{},
		"published_at": nil})
	f.tell(o, "release", "created", nil)
	return fmt.Sprint(o.id)
}

// Publish makes a draft public, and Unpublish a release a draft again.
func (f *Fake) Publish(id string) {
	f.with(id, func(o *object) {
		f.set(o, tree{"draft": false, "published_at": stamp(f.now())})
		f.tell(o, "release", "published", nil)
	})
}

// Unpublish makes a release a draft again.
func (f *Fake) Unpublish(id string) {
	f.with(id, func(o *object) {
		f.set(o, tree{"draft": true, "published_at": nil})
		f.tell(o, "release", "unpublished", nil)
	})
}

// Edit changes an object's text, Comment comments on an issue, Delete deletes an object, and Transfer moves an issue to another repository.
func (f *Fake) Edit(id string) { f.with(id, f.edit) }

// Comment comments on an issue.
func (f *Fake) Comment(id string) { f.with(id, f.comment) }

// Delete deletes an object for good.
func (f *Fake) Delete(id string) { f.with(id, f.remove) }

// Transfer moves an issue to another repository, where there are several.
func (f *Fake) Transfer(id string) {
	f.with(id, func(o *object) {
		for o.moved == nil {
			f.transfer(o)
		}
	})
}

// Rename gives the first repository another name. Old addresses lead to the new ones.
func (f *Fake) Rename(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.repos[0]
	r.name = name
	f.set(r.self, tree{"name": name, "full_name": r.fullName(), "url": f.address(r, "")})
}

func (f *Fake) with(id string, do func(*object)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.all {
		if fmt.Sprint(o.id) == id && !o.gone() {
			do(o)
			return
		}
	}
	panic("githubfake: no living object " + id)
}
