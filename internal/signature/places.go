package signature

import (
	"slices"
	"strconv"
	"strings"
)

// HasSignature reports whether a request has a signature of this scheme, readable or not.
func (s *Scheme) HasSignature(r Request) bool {
	v := &values{request: &r}
	texts, err := s.signatureTexts(v)
	if err != nil {
		return true
	}
	if s.Body != nil {
		if _, ok := v.find(s.Body.From); !ok {
			return false
		}
	}
	return s.isApplicable(v) && slices.ContainsFunc(texts, s.hasSignatureIn)
}

// isApplicable reports whether the sender names this scheme.
func (s *Scheme) isApplicable(v *values) bool {
	if s.When == nil {
		return true
	}
	text, _ := v.find(s.When.From)
	return string(text) == s.When.Is
}

// describe describes the required value.
func (c *Condition) describe() string {
	if c.Is == "" {
		return "absent"
	}
	return strconv.Quote(c.Is)
}

// hasSignatureIn reports whether a text has a signature that looks like one of this scheme. Several
// schemes may share a header.
func (s *Scheme) hasSignatureIn(text string) bool {
	for part := range s.itemTexts(text) {
		it, isSignature, err := s.readItem(part.index, part.text)
		if err == nil && isSignature && strings.HasPrefix(it.value, s.Signature.Prefix) {
			return true
		}
	}
	return false
}

// DescribePlace describes where the signature is, for messages.
func (s *Scheme) DescribePlace() string {
	places := make([]string, len(s.Signature.In))
	for i, ref := range s.Signature.In {
		places[i] = ref.String()
		if ref.Kind == Header {
			places[i] = ref.Name + " header"
		}
	}
	return strings.Join(places, " or ")
}

// signatureTexts returns the texts at the places of the signatures.
func (s *Scheme) signatureTexts(v *values) ([]string, error) {
	out := v.textsBuffer[:0]
	add := func(ref Ref) error {
		if n := len(v.request.Header[ref.Name]); ref.Kind == Header && n > 1 {
			return newError(Malformed, "%d %s headers instead of one", n, ref.Name)
		}
		text, ok := v.text(ref)
		if !ok || text == "" {
			return nil
		}
		if len(text) > maxSignatureBytes {
			return newError(Malformed, "%s is %d bytes long; at most %d are read", s.DescribePlace(), len(text),
				maxSignatureBytes)
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
		for _, n := range v.headerNumbers(stem) {
			if err := add(Ref{Kind: Header, Name: stem + strconv.Itoa(n)}); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// headerNumbers returns the numbers after a stem in the names of headers, in order. They may have
// gaps, because a sender may delete one of its keys.
func (v *values) headerNumbers(stem string) []int {
	var out []int
	for name := range v.request.Header {
		digits, ok := strings.CutPrefix(name, stem)
		n, err := strconv.Atoi(digits)
		if ok && err == nil && strconv.Itoa(n) == digits && n >= 1 && n <= maxNumberedHeaders {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out
}

// cutFirst cuts a list at its first separator; without a separator the list is one element.
func (s *Scheme) cutFirst(text, separator string) (first, rest string, more bool) {
	if separator == "" {
		return text, "", false
	}
	return strings.Cut(text, separator)
}

// itemText is the text of an item, and its index in its group from 0.
type itemText struct {
	index int
	text  string
}

// itemTexts iterates over the items of all groups of a text, without decoding.
func (s *Scheme) itemTexts(text string) func(yield func(itemText) bool) {
	return func(yield func(itemText) bool) {
		for group, more := "", true; more; {
			group, text, more = s.cutFirst(text, s.Signature.Group)
			for i, moreItems := 0, true; moreItems; i++ {
				var part string
				part, group, moreItems = s.cutFirst(group, s.Signature.Separator)
				if !yield(itemText{i, part}) {
					return
				}
			}
		}
	}
}

// readItem reads one item, and whether it is a signature.
func (s *Scheme) readItem(place int, text string) (it item, isSignature bool, err error) {
	if s.Signature.TrimSpaces {
		text = strings.Trim(text, " ")
	}
	if s.Signature.KeySeparator == "" {
		return item{value: text}, place >= s.Signature.Skip, nil
	}
	key, value, ok := strings.Cut(text, s.Signature.KeySeparator)
	if !ok {
		return item{}, false, newError(Malformed, "%s has an item that is not key%svalue", s.DescribePlace(),
			s.Signature.KeySeparator)
	}
	return item{key, value}, s.Signature.Item == "" || key == s.Signature.Item, nil
}
