package declared

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// MaxEvents bounds the events of one delivery, since the whole body is read again for each of them. A larger delivery is kept as one
// event of unknown type; no sender comes near.
const MaxEvents = 1000

// maxFields bounds the fields of a form.
const maxFields = 10_000

// parsed is a body that was read.
type parsed struct {
	root   *canonical.Value
	places []place
	// repeated: the body is a form in which a field comes twice.
	repeated bool
}

// place is where one event of a body stands.
type place struct {
	// trail are the elements that lead to the event, one of each list; empty where the body is the event.
	trail []*canonical.Value
	// item is the event; missing where its element has none.
	item *canonical.Value
}

// content is what an event consists of: all of its element where that lacks the event.
func (p place) content() *canonical.Value {
	if p.item.Kind() == canonical.Missing && len(p.trail) > 0 {
		return p.trail[len(p.trail)-1]
	}
	return p.item
}

// read reads a body as the Spec has it. The error is a *provider.Dead.
func (e *Events) read(body []byte) (parsed, error) {
	root, form, err := e.root(body)
	if err != nil {
		return parsed{}, err
	}
	p := parsed{root: root, repeated: form == Form && hasList(root)}
	if e.Split == "" {
		p.places = []place{{item: root}}
		return p, nil
	}
	return p, e.split(&p, root, nil, strings.Split(e.Split, stars))
}

// stars separates the lists of Split, and stands in a path of the whole body for the place of the event in one of them.
const stars = ".*."

// split adds the events of a list, whose path is the first of several. An element that lacks an inner list is kept as an event of
// its own, so that nothing of a delivery is lost.
func (e *Events) split(p *parsed, in *canonical.Value, trail []*canonical.Value, paths []string) error {
	list := Lookup(in, paths[0])
	if list.Kind() != canonical.Array {
		if len(trail) == 0 && e.Alone && in.Kind() == canonical.Object {
			return p.add(place{item: in})
		}
		if len(trail) == 0 {
			return &provider.Dead{Reason: fmt.Sprintf("the body has no list of events at %q", e.Split)}
		}
		return p.add(place{trail: trail})
	}
	for _, element := range list.Elements() {
		to := append(slices.Clone(trail), element)
		var err error
		if len(paths) > 1 {
			err = e.split(p, element, to, paths[1:])
		} else {
			err = p.add(place{trail: to, item: Lookup(element, e.Item)})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *parsed) add(one place) error {
	if len(p.places) == MaxEvents {
		return &provider.Dead{Reason: fmt.Sprintf("the body holds more than %d events", MaxEvents)}
	}
	p.places = append(p.places, one)
	return nil
}

// hasList tells whether a member is a list, which of a form's fields those are that come twice.
func hasList(v *canonical.Value) bool {
	for _, member := range v.Members() {
		if member.Kind() == canonical.Array {
			return true
		}
	}
	return false
}

// root reads the body in the first of the forms that it has.
func (e *Events) root(body []byte) (*canonical.Value, BodyForm, error) {
	var first error
	for _, form := range e.bodies() {
		v, err := e.readAs(form, body)
		if err == nil {
			return v, form, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, JSON, first
}

func (e *Events) bodies() []BodyForm {
	if len(e.Bodies) == 0 {
		return []BodyForm{JSON}
	}
	return e.Bodies
}

func (e *Events) readAs(form BodyForm, body []byte) (*canonical.Value, error) {
	if form == JSON {
		return e.readJSON(body)
	}
	if strings.Count(string(body), "&") >= maxFields {
		return nil, &provider.Dead{Reason: fmt.Sprintf("the form has more than %d fields", maxFields)}
	}
	fields, err := url.ParseQuery(string(body))
	switch {
	case err != nil:
		return nil, &provider.Dead{Reason: "the body is no form: " + err.Error()}
	case form == Payload && len(fields["payload"]) != 1:
		return nil, &provider.Dead{Reason: "the body is no form with one field payload"}
	case form == Payload:
		return e.readJSON([]byte(fields.Get("payload")))
	case len(body) == 0 || !strings.Contains(string(body), "="):
		return nil, &provider.Dead{Reason: "the body is no form"}
	}
	object := map[string]any{}
	for name, values := range fields {
		object[name] = values
		if len(values) == 1 {
			object[name] = values[0]
		}
	}
	text, err := json.Marshal(object)
	if err != nil {
		return nil, &provider.Dead{Reason: "the body is no form: " + err.Error()}
	}
	return e.readJSON(text)
}

func (e *Events) readJSON(body []byte) (*canonical.Value, error) {
	if e.Split != "." {
		return provider.ReadObject(body)
	}
	v, err := canonical.Parse(body)
	if err != nil {
		return nil, &provider.Dead{Reason: "the body is not JSON: " + err.Error()}
	}
	return v, nil
}

// Lookup is the value at a dotted path; numbers step into arrays, "" and "." stay.
func Lookup(v *canonical.Value, path string) *canonical.Value {
	if path == "" || path == "." {
		return v
	}
	for _, step := range strings.Split(path, ".") {
		if v.Kind() != canonical.Array {
			v = v.Get(step)
			continue
		}
		n, err := strconv.Atoi(step)
		elements := v.Elements()
		if err != nil || n < 0 || n >= len(elements) {
			return nil
		}
		v = elements[n]
	}
	return v
}

// Scalar is a text, number or truth value as a text; ok is false for anything else.
func Scalar(v *canonical.Value) (string, bool) {
	switch v.Kind() {
	case canonical.String:
		s, _ := v.Text()
		return s, s != ""
	case canonical.Number:
		return v.NumberText(), true
	case canonical.Bool:
		return string(v.Raw()), true
	}
	return "", false
}
