package console

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The bounds of what a page shows of a document. The rest can be downloaded.
const (
	maxDocumentBytes = 64 << 10
	maxParsedBytes   = 4 << 20
	maxDocumentNodes = 2000
	maxDocumentDepth = 200
	maxStringRunes   = 1024
	openDepth        = 3
)

// document is a body or a state: a tree if it is JSON, else text.
type document struct {
	Root *node
	Text string
	// Note says what is not shown.
	Note string
	// Raw is the address of the bytes; "" where there is none.
	Raw  string
	Size int
}

// node is a value in a JSON document.
type node struct {
	// Name is the member's name or the element's position; "" for the root.
	Name string
	// Text is a scalar's text, Kind its type: string, number, literal; object and array have
	// children.
	Text, Kind string
	Children   []*node
	Open       bool
	// More: there are children that are not shown.
	More bool
}

// Summary describes an object or array that is not open.
func (n *node) Summary() string {
	count := strconv.Itoa(len(n.Children))
	if n.More {
		count += "…"
	}
	if n.Kind == "array" {
		return "[" + count + "]"
	}
	return "{" + count + "}"
}

// newDocument makes a document of bytes that may come from anyone.
func newDocument(body []byte, raw string) *document {
	d := &document{Raw: raw, Size: len(body)}
	if len(body) > maxDocumentBytes {
		d.Note = fmt.Sprintf("The page shows the first %d KB of %s bytes.", maxDocumentBytes>>10,
			groupDigits(int64(len(body))))
	}
	if len(body) <= maxParsedBytes && utf8.Valid(body) && len(bytes.TrimSpace(body)) > 0 {
		p := &treeParser{decoder: json.NewDecoder(bytes.NewReader(body))}
		p.decoder.UseNumber()
		if root, err := p.document(); err == nil {
			d.Root, d.Note = root, p.note()
			return d
		}
	}
	d.Text = shownText(body)
	return d
}

// shownText returns text, or bytes in hexadecimal with their text.
func shownText(body []byte) string {
	shown := body[:min(len(body), maxDocumentBytes)]
	if utf8.Valid(body) {
		return visible(string(shown))
	}
	return visible(hex.Dump(shown[:min(len(shown), 4096)]))
}

var (
	errTooDeep       = errors.New("the document is too deep")
	errSeveralValues = errors.New("the document has several values")
	// errCut ends the reading of a document at a bound.
	errCut = errors.New("the document is cut")
)

// treeParser reads a document up to the bounds.
type treeParser struct {
	decoder *json.Decoder
	nodes   int
	size    int
	// cut: the rest of the values is not shown. shortened: the rest of a long text is not.
	cut, shortened bool
}

// note says what is not shown.
func (p *treeParser) note() string {
	var all []string
	if p.cut {
		all = append(all, fmt.Sprintf("The page shows the first %s values or %d KB.", groupDigits(maxDocumentNodes),
			maxDocumentBytes>>10))
	}
	if p.shortened {
		all = append(all, fmt.Sprintf("The page shows the first %s characters of a longer text.",
			groupDigits(maxStringRunes)))
	}
	return strings.Join(all, " ")
}

// document reads the only value of a text.
func (p *treeParser) document() (*node, error) {
	root, err := p.value("", 0)
	if errors.Is(err, errCut) {
		return root, nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := p.decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errSeveralValues
	}
	return root, nil
}

func (p *treeParser) value(name string, depth int) (*node, error) {
	t, err := p.decoder.Token()
	if err != nil {
		return nil, err
	}
	return p.valueOf(t, name, depth)
}

func (p *treeParser) valueOf(t json.Token, name string, depth int) (*node, error) {
	p.nodes++
	n := &node{Name: p.shorten(name), Open: depth < openDepth}
	switch t := t.(type) {
	case json.Delim:
		if depth >= maxDocumentDepth {
			return nil, errTooDeep
		}
		n.Kind = "object"
		if t == '[' {
			n.Kind = "array"
		}
		return n, p.children(n, depth)
	case string:
		n.Kind, n.Text = "string", p.shorten(t)
	case json.Number:
		n.Kind, n.Text = "number", p.shorten(t.String())
	default:
		n.Kind, n.Text = "literal", fmt.Sprint(t)
		if t == nil {
			n.Text = "null"
		}
	}
	p.size += len(n.Text) + len(n.Name)
	return n, nil
}

// shorten returns what is shown of a text.
func (p *treeParser) shorten(s string) string {
	if runes := []rune(s); len(runes) > maxStringRunes {
		p.shortened = true
		return visible(string(runes[:maxStringRunes])) + "…"
	}
	return visible(s)
}

// children reads the members or elements of n. At a bound it ends with errCut, and the rest of the
// document is not read: that could take seconds.
func (p *treeParser) children(n *node, depth int) error {
	for i := 0; p.decoder.More(); i++ {
		name := fmt.Sprint(i)
		if n.Kind == "object" {
			t, err := p.decoder.Token()
			if err != nil {
				return err
			}
			name, _ = t.(string)
		}
		if p.nodes >= maxDocumentNodes || p.size > maxDocumentBytes {
			p.cut, n.More = true, true
			return errCut
		}
		child, err := p.value(name, depth+1)
		if err != nil && !errors.Is(err, errCut) {
			return err
		}
		n.Children = append(n.Children, child)
		if err != nil {
			n.More = true
			return err
		}
	}
	_, err := p.decoder.Token()
	return err
}

// headerFields shows a JSON object of texts as fields.
func headerFields(raw json.RawMessage) []field {
	d := newDocument(raw, "")
	if d.Root == nil {
		return nil
	}
	var fields []field
	for _, n := range d.Root.Children {
		texts := []string{n.Text}
		for _, c := range n.Children {
			texts = append(texts, c.Text)
		}
		fields = append(fields, field{n.Name, []cell{{Text: strings.TrimSpace(strings.Join(texts, " ")), Code: true}}})
	}
	return fields
}
