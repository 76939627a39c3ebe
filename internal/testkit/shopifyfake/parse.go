package shopifyfake

import (
	"fmt"
	"regexp"
	"strings"
)

// selection is a requested field of a query.
type selection struct {
	alias, name string
	// args are the arguments as written: $name, a name, a number or a quoted text.
	args map[string]string
	sub  []selection
}

// document is one query with the types of its variables.
type document struct {
	variables map[string]string
	fields    []selection
	// root is the type of the operation: query or mutation. isBulk: its connections are complete
	// and not paged.
	root   string
	isBulk bool
}

var token = regexp.MustCompile(`[\s,]*(\$?[A-Za-z_][A-Za-z0-9_]*|-?\d+|"[^"\\]*"|[{}():!\[\]=])`)

// parser parses the part of GraphQL that Postern uses.
type parser struct {
	tokens []string
}

func parse(query string) (d document, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("syntax error: %v", r)
		}
	}()
	p := &parser{}
	rest := strings.TrimSpace(query)
	for rest != "" {
		at := token.FindStringSubmatchIndex(rest)
		if at == nil || at[0] != 0 {
			return d, fmt.Errorf("syntax error at %.20q", rest)
		}
		p.tokens = append(p.tokens, rest[at[2]:at[3]])
		rest = strings.TrimSpace(rest[at[1]:])
	}
	d.root = "QueryRoot"
	if p.is("mutation") {
		d.root = "Mutation"
	} else {
		p.want("query")
	}
	d.variables = map[string]string{}
	if p.is("(") {
		for !p.is(")") {
			name := p.next()
			p.want(":")
			d.variables[strings.TrimPrefix(name, "$")] = p.typeName()
		}
	}
	p.want("{")
	d.fields = p.selections()
	if len(p.tokens) > 0 {
		panic("more than one query")
	}
	return d, nil
}

func (p *parser) next() string {
	if len(p.tokens) == 0 {
		panic("the query ends too early")
	}
	first := p.tokens[0]
	p.tokens = p.tokens[1:]
	return first
}

func (p *parser) want(s string) {
	if got := p.next(); got != s {
		panic(fmt.Sprintf("%q in the place of %q", got, s))
	}
}

// is takes the next token if it equals s.
func (p *parser) is(s string) bool {
	if len(p.tokens) == 0 || p.tokens[0] != s {
		return false
	}
	p.tokens = p.tokens[1:]
	return true
}

func (p *parser) typeName() string {
	name := p.next()
	if p.is("!") {
		name += "!"
	}
	return name
}

// selections parses up to the closing brace.
func (p *parser) selections() []selection {
	var out []selection
	for !p.is("}") {
		s := selection{name: p.next(), args: map[string]string{}}
		s.alias = s.name
		if p.is(":") {
			s.name = p.next()
		}
		if p.is("(") {
			for !p.is(")") {
				name := p.next()
				p.want(":")
				s.args[name] = p.next()
			}
		}
		if p.is("{") {
			if s.sub = p.selections(); len(s.sub) == 0 {
				panic("an empty selection")
			}
		}
		out = append(out, s)
	}
	return out
}
