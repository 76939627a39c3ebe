package declared

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// maxEvents bounds the events of one delivery; no sender comes near.
const maxEvents = 10_000

// parsed is a body that was read.
type parsed struct {
	root  *canonical.Value
	items []*canonical.Value
}

// read reads a body as the Spec has it. The error is a *provider.Dead.
func (e *Events) read(body []byte) (parsed, error) {
	root, err := e.root(body)
	if err != nil {
		return parsed{}, err
	}
	if e.Split == "" {
		return parsed{root: root, items: []*canonical.Value{root}}, nil
	}
	list := lookup(root, e.Split)
	if list.Kind() != canonical.Array {
		return parsed{}, &provider.Dead{Reason: fmt.Sprintf("the body has no list of events at %q", e.Split)}
	}
	elements := list.Elements()
	if len(elements) > maxEvents {
		return parsed{}, &provider.Dead{Reason: fmt.Sprintf("the body holds %d events; at most %d are read", len(elements), maxEvents)}
	}
	p := parsed{root: root}
	for _, element := range elements {
		p.items = append(p.items, lookup(element, e.Item))
	}
	return p, nil
}

// root reads the body in the first of the forms that it has.
func (e *Events) root(body []byte) (*canonical.Value, error) {
	var first error
	for _, form := range append([]BodyForm{}, e.bodies()...) {
		v, err := e.readAs(form, body)
		if err == nil {
			return v, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
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
	if strings.Count(string(body), "&") >= maxEvents {
		return nil, &provider.Dead{Reason: fmt.Sprintf("the form has more than %d fields", maxEvents)}
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

// lookup is the value at a dotted path; numbers step into arrays, "" and "." stay.
func lookup(v *canonical.Value, path string) *canonical.Value {
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

// scalar is a text, number or truth value as a text; ok is false for anything else.
func scalar(v *canonical.Value) (string, bool) {
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

// context finds what references name for one event.
type context struct {
	spec  *Spec
	root  *canonical.Value
	item  *canonical.Value
	index int
	// eventType is known when an object is named, the delivery when an event is.
	eventType string
	src       *provider.Source
	delivery  *provider.Delivery
}

func (c *context) find(ref signature.Ref) (string, bool) {
	s, ok := c.raw(ref)
	if ref.Lower {
		s = strings.ToLower(s)
	}
	return s, ok
}

func (c *context) raw(ref signature.Ref) (string, bool) {
	switch ref.Kind {
	case signature.JSON:
		return scalar(lookup(c.item, ref.Name))
	case signature.Root, signature.Form:
		return scalar(lookup(c.root, ref.Name))
	case signature.Index:
		return strconv.Itoa(c.index), true
	case signature.EventType:
		return c.eventType, c.eventType != ""
	case signature.Content:
		sum := c.item.Sum(canonical.Options{Without: c.spec.Events.Omit})
		return hex.EncodeToString(sum[:16]), true
	}
	if c.delivery == nil {
		return "", false
	}
	return signature.Find(provider.Request(c.src, c.delivery), ref)
}

// first is the first template that is complete, and can name something.
func (c *context) first(templates []signature.Template) string {
	for _, t := range templates {
		if s, err := t.Expand(c.find); err == nil && provider.ValidName(s) {
			return s
		}
	}
	return ""
}

// value is what a path names: in the event, or with root: in the whole body.
func (c *context) value(path string) *canonical.Value {
	if rest, ok := strings.CutPrefix(path, "root:"); ok {
		return lookup(c.root, rest)
	}
	return lookup(c.item, path)
}

// at reads a time or a version in microseconds (an integer as it is), and the resolution of its clock.
func (c *context) at(ref signature.Ref, unit Unit) (at, resolution int64, ok bool) {
	text, ok := c.find(ref)
	if !ok {
		return 0, 0, false
	}
	at, ok = unit.read(text)
	return at, unit.resolution(text), ok
}

// maxAt is the end of the year 9999 in microseconds.
const maxAt = 253_402_300_800_000_000

func (u Unit) read(text string) (int64, bool) {
	if u == Integer {
		n, err := strconv.ParseInt(text, 10, 64)
		return n, err == nil && n >= 0
	}
	if u == RFC3339 || u == Auto && strings.ContainsAny(text, "-:T") {
		for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05 MST", "2006-01-02 15:04:05 -0700", "2006-01-02T15:04:05.999999999Z0700"} {
			if t, err := time.Parse(layout, text); err == nil {
				at := t.UnixMicro()
				return at, t.Year() < 10_000 && at > 0
			}
		}
		return 0, false
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(n) || n <= 0 || n > maxAt {
		return 0, false
	}
	scale := int64(1e6)
	if u == Milliseconds || u == Auto && n >= 1e11 {
		scale = 1e3
	}
	if whole, err := strconv.ParseInt(text, 10, 64); err == nil {
		return whole * scale, whole < maxAt/scale
	}
	at := math.Round(n * float64(scale))
	return int64(at), at < maxAt
}
