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
	if trimmed := bytes.TrimSpace(body); len(trimmed) > 0 && trimmed[0] != '{' && trimmed[0] != '[' &&
		bytes.IndexByte(trimmed, '=') > 0 {
		return "application/x-www-form-urlencoded"
	}
	return "application/json"
}

// setNameHeaders sets the headers that are the event's only key and type.
func (p *Provider) setNameHeaders(h http.Header, s provider.Sample) {
	id := s.ID
	if id == "" {
		token := provider.SampleToken(s.Type+string(s.Body), 0, time.Time{})
		id = hex.EncodeToString(token[:16])
	}
	for header, value := range map[string]string{singleHeader(p.spec.Events.Key): id,
		singleHeader(p.spec.Events.Type): s.Type} {
		if header != "" {
			h.Set(header, value)
		}
	}
}

// singleHeader returns the header that is the whole first template, or "".
func singleHeader(templates []signature.Template) string {
	if len(templates) == 0 {
		return ""
	}
	refs := templates[0].Refs()
	if len(refs) != 1 || refs[0].Kind != signature.Header {
		return ""
	}
	return refs[0].Name
}

// signItems signs every event of a delivery.
func (p *Provider) signItems(src *provider.Source, d *provider.Delivery, at time.Time) error {
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
		if err := provider.SignDelivery(src, one, p.spec.Schemes[0], at); err != nil {
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

// MakeVariant makes another event from a sample, with Spec.Variants.
func (p *Provider) MakeVariant(s provider.Sample, n int, at time.Time, newObject bool) (provider.Sample, error) {
	token := provider.SampleToken(s.Type, n, at)
	s.ID = hex.EncodeToString(token[:16])
	edit := func(valueAt func(path string) any, set func(path string, v any)) {
		for i, path := range p.spec.Variants.IDs {
			if old, ok := valueAt(path).(string); ok {
				set(path, newID(old, s.ID, i))
			} else if _, ok := valueAt(path).(json.Number); ok {
				number := uint64(token[0])<<32 | uint64(token[1])<<24 | uint64(token[2])<<16 |
					uint64(token[3])<<8 | uint64(token[4])
				set(path, json.Number(strconv.FormatUint(number, 10)))
			}
		}
		for _, t := range p.spec.Variants.Times {
			if old := valueAt(t.From.Name); old != nil {
				set(t.From.Name, formatTime(old, t.Unit, at))
			}
		}
		for _, path := range p.spec.Variants.Versions {
			if old := valueAt(path); old != nil {
				set(path, appendNumber(old, n))
			}
		}
		if path := p.spec.Variants.Counter; path != "" && valueAt(path) != nil {
			set(path, appendNumber(valueAt(path), n))
		}
		for _, path := range p.spec.Variants.Objects {
			if old := valueAt(path); newObject && old != nil {
				set(path, appendNumber(old, n))
			}
		}
	}
	var err error
	s.Body, err = editBody(s.Body, edit)
	return s, err
}

// editBody rewrites a JSON body or a form.
func editBody(body []byte, edit func(valueAt func(string) any, set func(string, any))) ([]byte, error) {
	if contentType(body) != "application/json" {
		fields, err := url.ParseQuery(string(body))
		if err != nil {
			return nil, fmt.Errorf("read sample: %w", err)
		}
		if text := fields.Get("payload"); strings.HasPrefix(text, "{") { // the fields belong to the event
			payload, err := editBody([]byte(text), edit)
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

// newID keeps the prefix of an id ("evt_") and replaces the rest, in the same length up to the
// token's length. It rotates the token by position, so that the ids of one event differ.
func newID(old, token string, position int) string {
	if position > 0 {
		token = token[position%8:] + token[:position%8]
	}
	// Twilio: two letters and 32 digits
	if len(old) == 34 && len(token) == 32 && strings.Trim(old[2:], "0123456789abcdef") == "" {
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

// appendNumber appends n to a text or number.
func appendNumber(old any, n int) any {
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

// formatTime writes a time in the unit and the JSON type of the old value.
func formatTime(old any, unit Unit, at time.Time) any {
	var text string
	number, isNumber := old.(json.Number)
	if unit.isAuto() && isNumber {
		unit = Seconds
		if n, err := number.Float64(); err == nil && n >= minMilliseconds {
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
		return nil, errors.New("the document is null")
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

// get returns the value at a dotted path of decoded JSON, or nil.
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

// put sets the value at a dotted path whose parent exists.
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
