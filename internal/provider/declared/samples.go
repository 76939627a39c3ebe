package declared

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

func contentType(body []byte) string {
	if trimmed := bytes.TrimSpace(body); len(trimmed) > 0 && trimmed[0] != '{' && trimmed[0] != '[' && bytes.IndexByte(trimmed, '=') > 0 {
		return "application/x-www-form-urlencoded"
	}
	return "application/json"
}

// name sets the headers that alone name an event's key and type.
func (p *Provider) name(h http.Header, s provider.Sample) {
	id := s.ID
	if id == "" {
		token := provider.Token(s.Type+string(s.Body), 0, time.Time{})
		id = hex.EncodeToString(token[:16])
	}
	for header, value := range map[string]string{onlyHeader(p.spec.Events.Key): id, onlyHeader(p.spec.Events.Type): s.Type} {
		if header != "" {
			h.Set(header, value)
		}
	}
}

// onlyHeader is the header that the first template consists of; "" where it is another.
func onlyHeader(templates []signature.Template) string {
	if len(templates) == 0 {
		return ""
	}
	refs := templates[0].Refs()
	if len(refs) != 1 || refs[0].Kind != signature.Header {
		return ""
	}
	return refs[0].Name
}

// sealItems signs every event of a delivery.
func (p *Provider) sealItems(src *provider.Source, d *provider.Delivery, at time.Time) error {
	root, err := decode(d.Body)
	if err != nil {
		return err
	}
	list, ok := get(root, p.spec.Events.Split).([]any)
	if !ok {
		return fmt.Errorf("the body has no list of events at %q", p.spec.Events.Split)
	}
	for i, element := range list {
		text, err := encode(get(element, p.spec.Events.Item))
		if err != nil {
			return err
		}
		one := &provider.Delivery{Header: d.Header, Body: text}
		if err := provider.Seal(src, one, p.spec.Schemes[0], at); err != nil {
			return err
		}
		signed, err := decode(one.Body)
		if err != nil {
			return err
		}
		if p.spec.Events.Item == "" {
			list[i] = signed
		} else {
			put(element, p.spec.Events.Item, signed)
		}
	}
	d.Body, err = encode(root)
	return err
}

// Vary makes another event out of a sample by the Spec's Vary.
func (p *Provider) Vary(s provider.Sample, n int, at time.Time, newObject bool) (provider.Sample, error) {
	token := provider.Token(s.Type, n, at)
	s.ID = hex.EncodeToString(token[:16])
	edit := func(has func(path string) any, put func(path string, v any)) {
		for i, path := range p.spec.Vary.IDs {
			if old, ok := has(path).(string); ok {
				put(path, newID(old, s.ID, i))
			} else if _, ok := has(path).(json.Number); ok {
				put(path, json.Number(strconv.FormatUint(uint64(token[0])<<32|uint64(token[1])<<24|uint64(token[2])<<16|uint64(token[3])<<8|uint64(token[4]), 10)))
			}
		}
		for _, t := range p.spec.Vary.Times {
			if old := has(t.From.Name); old != nil {
				put(t.From.Name, written(old, t.Unit, at))
			}
		}
		for _, path := range p.spec.Vary.Versions {
			if old := has(path); old != nil {
				put(path, counted(old, n))
			}
		}
		if path := p.spec.Vary.Counter; path != "" && has(path) != nil {
			put(path, counted(has(path), n))
		}
		for _, path := range p.spec.Vary.Objects {
			if old := has(path); newObject && old != nil {
				put(path, counted(old, n))
			}
		}
	}
	var err error
	s.Body, err = edited(s.Body, edit)
	return s, err
}

// edited rewrites a JSON body or a form by a function.
func edited(body []byte, edit func(has func(string) any, put func(string, any))) ([]byte, error) {
	if contentType(body) != "application/json" {
		fields, err := url.ParseQuery(string(body))
		if err != nil {
			return nil, fmt.Errorf("read sample: %w", err)
		}
		if text := fields.Get("payload"); strings.HasPrefix(text, "{") { // the fields are the event's
			payload, err := edited([]byte(text), edit)
			fields.Set("payload", string(payload))
			return []byte(fields.Encode()), err
		}
		edit(func(path string) any {
			if !fields.Has(path) {
				return nil
			}
			return fields.Get(path)
		}, func(path string, v any) { fields.Set(path, fmt.Sprint(v)) })
		return []byte(fields.Encode()), nil
	}
	root, err := decode(body)
	if err != nil {
		return nil, fmt.Errorf("read sample: it must be JSON: %w", err)
	}
	edit(func(path string) any { return get(root, path) }, func(path string, v any) { put(root, path, v) })
	return encode(root)
}

// newID keeps what an id begins with ("evt_") and makes the rest new, as long as it was, up to the token's length.
func newID(old, token string, place int) string {
	if place > 0 {
		token = token[place%8:] + token[:place%8]
	}
	if len(old) == 34 && len(token) == 32 && strings.Trim(old[2:], "0123456789abcdef") == "" { // Twilio's: two letters and 32 digits
		return old[:2] + token
	}
	if len(old) == 36 && strings.Count(old, "-") == 4 {
		return token[:8] + "-" + token[8:12] + "-" + token[12:16] + "-" + token[16:20] + "-" + token[20:32]
	}
	stem := ""
	if i := strings.LastIndexAny(old, "_-:/"); i >= 0 {
		stem = old[:i+1]
	}
	return stem + token[:min(len(token), max(8, len(old)-len(stem)))]
}

// counted ends a text or number in n.
func counted(old any, n int) any {
	switch old := old.(type) {
	case json.Number:
		if base, err := strconv.ParseUint(old.String()+strconv.Itoa(n), 10, 63); err == nil {
			return json.Number(strconv.FormatUint(base, 10))
		}
		return old
	case string:
		return old + "-" + strconv.Itoa(n)
	}
	return old
}

// written is a time in the unit and the JSON type of the old one.
func written(old any, unit Unit, at time.Time) any {
	var text string
	number, isNumber := old.(json.Number)
	if unit == Auto && isNumber {
		unit = Seconds
		if n, err := number.Float64(); err == nil && n >= leastMilliseconds {
			unit = Milliseconds
		}
	}
	switch {
	case unit == Milliseconds:
		text = strconv.FormatInt(at.UnixMilli(), 10)
	case unit == Seconds:
		text = strconv.FormatInt(at.Unix(), 10)
	case unit == Integer:
		return old
	default:
		return at.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	if isNumber {
		return json.Number(text)
	}
	return text
}

func decode(body []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	if v == nil {
		return nil, errors.New("it is null")
	}
	return v, nil
}

func encode(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSpace(out.Bytes()), err
}

// get is the value at a dotted path of decoded JSON; nil where there is none.
func get(v any, path string) any {
	if path == "" || path == "." {
		return v
	}
	for _, step := range strings.Split(path, ".") {
		switch in := v.(type) {
		case map[string]any:
			v = in[step]
		case []any:
			n, err := strconv.Atoi(step)
			if err != nil || n < 0 || n >= len(in) {
				return nil
			}
			v = in[n]
		default:
			return nil
		}
	}
	return v
}

// put sets the value at a dotted path whose parent is there.
func put(root any, path string, v any) {
	parent, last := root, path
	if i := strings.LastIndex(path, "."); i >= 0 {
		parent, last = get(root, path[:i]), path[i+1:]
	}
	switch in := parent.(type) {
	case map[string]any:
		in[last] = v
	case []any:
		if n, err := strconv.Atoi(last); err == nil && n >= 0 && n < len(in) {
			in[n] = v
		}
	}
}
