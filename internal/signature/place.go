package signature

import (
	"slices"
	"strconv"
	"strings"
)

// Present tells whether a request has a signature of this scheme at all, be it readable or not.
func (s *Scheme) Present(r Request) bool {
	v := &values{r: &r}
	texts, err := s.texts(v)
	if err != nil {
		return true
	}
	if s.Body != nil {
		if _, ok := v.find(s.Body.From); !ok {
			return false
		}
	}
	return s.applies(v) && slices.ContainsFunc(texts, s.carries)
}

// applies tells whether the sender says that it signed by this scheme.
func (s *Scheme) applies(v *values) bool {
	if s.When == nil {
		return true
	}
	text, _ := v.find(s.When.From)
	return string(text) == s.When.Is
}

// words says what the value must be.
func (c *Condition) words() string {
	if c.Is == "" {
		return "absent"
	}
	return strconv.Quote(c.Is)
}

// carries tells whether a text holds what looks like a signature of this scheme: several schemes may share a header.
func (s *Scheme) carries(text string) bool {
	for part := range s.parts(text) {
		it, isSignature, err := s.item(part.place, part.text)
		if err == nil && isSignature && strings.HasPrefix(it.value, s.Signature.Prefix) {
			return true
		}
	}
	return false
}

// Where says where the signature sits, for messages.
func (s *Scheme) Where() string {
	words := make([]string, len(s.Signature.In))
	for i, ref := range s.Signature.In {
		words[i] = ref.String()
		if ref.Kind == Header {
			words[i] = ref.Name + " header"
		}
	}
	return strings.Join(words, " or ")
}

// texts are what stands at the places of the signatures.
func (s *Scheme) texts(v *values) ([]string, error) {
	out := v.someTexts[:0]
	add := func(ref Ref) error {
		if n := len(v.r.Header[ref.Name]); ref.Kind == Header && n > 1 {
			return fail(Malformed, "%d %s headers instead of one", n, ref.Name)
		}
		text, ok := v.text(ref)
		if !ok || text == "" {
			return nil
		}
		if len(text) > maxHeader {
			return fail(Malformed, "%s is %d bytes long; at most %d are read", s.Where(), len(text), maxHeader)
		}
		out = append(out, text)
		return nil
	}
	for _, ref := range s.Signature.In {
		stem, numbered := strings.CutSuffix(ref.Name, "#")
		if ref.Kind != Header || !numbered {
			if err := add(ref); err != nil {
				return nil, err
			}
			continue
		}
		for _, n := range v.numbers(stem) {
			if err := add(Ref{Kind: Header, Name: stem + strconv.Itoa(n)}); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// numbers are those that follow a stem in the names of headers, in their order. There may be gaps: a sender's key that was deleted
// leaves one.
func (v *values) numbers(stem string) []int {
	var out []int
	for name := range v.r.Header {
		digits, ok := strings.CutPrefix(name, stem)
		n, err := strconv.Atoi(digits)
		if ok && err == nil && strconv.Itoa(n) == digits && n >= 1 && n <= maxNumbered {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// cut takes the text before a separator off a list; all of it where there is none.
func (s *Scheme) cut(text, separator string) (first, rest string, more bool) {
	if separator == "" {
		return text, "", false
	}
	return strings.Cut(text, separator)
}

// piece is an item of a group, as it is written, and its place there from 0.
type piece struct {
	place int
	text  string
}

// parts are the items of all groups of a text, for those who only look.
func (s *Scheme) parts(text string) func(yield func(piece) bool) {
	return func(yield func(piece) bool) {
		for group, more := "", true; more; {
			group, text, more = s.cut(text, s.Signature.Group)
			for i, moreItems := 0, true; moreItems; i++ {
				var part string
				part, group, moreItems = s.cut(group, s.Signature.Separator)
				if !yield(piece{i, part}) {
					return
				}
			}
		}
	}
}

// item reads one item, and whether it is a signature.
func (s *Scheme) item(place int, text string) (it item, isSignature bool, err error) {
	if s.Signature.Spaces {
		text = strings.Trim(text, " ")
	}
	if s.Signature.Assign == "" {
		return item{value: text}, place >= s.Signature.Skip, nil
	}
	key, value, ok := strings.Cut(text, s.Signature.Assign)
	if !ok {
		return item{}, false, fail(Malformed, "%s has an item that is not key%svalue", s.Where(), s.Signature.Assign)
	}
	return item{key, value}, s.Signature.Item == "" || key == s.Signature.Item, nil
}
