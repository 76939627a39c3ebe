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

// MaxEvents is the maximum number of events of one delivery, because the whole body is parsed again
// for each of them. A larger delivery is stored as one event of unknown type. No sender comes near
// this limit.
const MaxEvents = 1000

// maxFields is the maximum number of fields of a form.
const maxFields = 10_000

// parsedBody is a parsed body with the positions of its events.
type parsedBody struct {
	root      *canonical.Value
	positions []position
	// repeated means that the body is a form in which a field occurs twice.
	repeated bool
}

// position is the position of one event in a body.
type position struct {
	// parents are the list elements that contain the event, one of each list; empty if the body is
	// the event.
	parents []*canonical.Value
	// event is the event; Missing if its element has none.
	event *canonical.Value
}

// content returns the event, or the whole element if that has no event.
func (p position) content() *canonical.Value {
	if p.event.Kind() == canonical.Missing && len(p.parents) > 0 {
		return p.parents[len(p.parents)-1]
	}
	return p.event
}

// parse parses a body as the Spec describes it. The error is a *provider.Dead.
func (e *Events) parse(body []byte) (parsedBody, error) {
	root, form, err := e.parseBody(body)
	if err != nil {
		return parsedBody{}, err
	}
	p := parsedBody{root: root, repeated: form == Form && hasList(root)}
	if e.Split == "" {
		p.positions = []position{{event: root}}
		return p, nil
	}
	return p, e.split(&p, root, nil, strings.Split(e.Split, listSeparator))
}

// listSeparator separates the lists of Split. In a path of the whole body it stands for the
// position of the event in one of them.
const listSeparator = ".*."

// split adds the events of a list in a value. paths are the paths of this list and of its inner
// lists; parents are the list elements that contain the value. An element without an inner list
// becomes an event of its own, so that nothing of a delivery is lost.
func (e *Events) split(p *parsedBody, in *canonical.Value, parents []*canonical.Value, paths []string) error {
	list := Lookup(in, paths[0])
	if list.Kind() != canonical.Array {
		if len(parents) == 0 && e.AllowSingle && in.Kind() == canonical.Object {
			return p.add(position{event: in})
		}
		if len(parents) == 0 {
			return &provider.Dead{Reason: fmt.Sprintf("the body has no list of events at %q", e.Split)}
		}
		return p.add(position{parents: parents})
	}
	for _, element := range list.Elements() {
		inside := append(slices.Clone(parents), element)
		var err error
		if len(paths) > 1 {
			err = e.split(p, element, inside, paths[1:])
		} else {
			err = p.add(position{parents: inside, event: Lookup(element, e.Item)})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *parsedBody) add(one position) error {
	if len(p.positions) == MaxEvents {
		return &provider.Dead{Reason: fmt.Sprintf("the body holds more than %d events", MaxEvents)}
	}
	p.positions = append(p.positions, one)
	return nil
}

// hasList reports whether a member is a list. In a form that is a field that occurs twice.
func hasList(v *canonical.Value) bool {
	for _, member := range v.Members() {
		if member.Kind() == canonical.Array {
			return true
		}
	}
	return false
}

// parseBody parses the body in the first form that fits.
func (e *Events) parseBody(body []byte) (*canonical.Value, BodyForm, error) {
	var first error
	for _, form := range e.bodyForms() {
		v, err := e.parseAs(form, body)
		if err == nil {
			return v, form, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, JSON, first
}

func (e *Events) bodyForms() []BodyForm {
	if len(e.Bodies) == 0 {
		return []BodyForm{JSON}
	}
	return e.Bodies
}

func (e *Events) parseAs(form BodyForm, body []byte) (*canonical.Value, error) {
	if form == JSON || form == "" {
		return e.parseJSON(body)
	}
	if strings.Count(string(body), "&") >= maxFields {
		return nil, &provider.Dead{Reason: fmt.Sprintf("the form has more than %d fields", maxFields)}
	}
	fields, err := url.ParseQuery(string(body))
	switch {
	case err != nil:
		return nil, &provider.Dead{Reason: "the body is not a form: " + err.Error()}
	case form == Payload && len(fields["payload"]) != 1:
		return nil, &provider.Dead{Reason: "the body is not a form with one field payload"}
	case form == Payload:
		return e.parseJSON([]byte(fields.Get("payload")))
	case len(body) == 0 || !strings.Contains(string(body), "="):
		return nil, &provider.Dead{Reason: "the body is not a form"}
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
		return nil, &provider.Dead{Reason: "the body is not a form: " + err.Error()}
	}
	return e.parseJSON(text)
}

func (e *Events) parseJSON(body []byte) (*canonical.Value, error) {
	if e.Split != "." {
		return provider.ReadObject(body)
	}
	v, err := canonical.Parse(body)
	if err != nil {
		return nil, &provider.Dead{Reason: "the body is not JSON: " + err.Error()}
	}
	return v, nil
}

// Lookup returns the value at a dotted path. Numbers select array elements; "" and "." return the
// value itself.
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

// Scalar returns a string, number or boolean as text; ok is false for any other value.
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
