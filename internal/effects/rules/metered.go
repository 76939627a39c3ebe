package rules

import (
	"errors"
	"regexp/syntax"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/builtin"
)

// Functions that count work: names that nobody can write.
const (
	turn   = "\x00turn"
	weigh  = "\x00weigh"
	equal  = "\x00equal"
	inside = "\x00in"
	call   = "\x00call"
)

// manyTimes is how often a value is compared that others are sorted by.
const manyTimes = 16

var errPattern = errors.New("matches needs its pattern between quotes")

// metered makes an expression count its work: each turn of a loop, and whatever takes longer with a larger value.
type metered struct {
	err error
	// steps: it names what steps before have captured.
	steps bool
	// names are what it names, as new, and event.id.
	names map[string]bool
}

// Visit is called for each node, the inner ones first.
func (m *metered) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.IdentifierNode:
		m.steps = m.steps || n.Value == "steps"
		m.names[n.Value] = true
	case *ast.PredicateNode:
		n.Node = &ast.ConditionalNode{Cond: calls(turn, &ast.IntegerNode{Value: nodes(n.Node)}), Exp1: n.Node, Exp2: &ast.NilNode{}}
	case *ast.BinaryNode:
		m.binary(node, n)
	case *ast.BuiltinNode:
		function(node, n)
	case *ast.CallNode:
		n.SetType(nil) // its arguments may have changed: they are looked at again
	case *ast.MemberNode:
		of, isName := n.Node.(*ast.IdentifierNode)
		if member, ok := n.Property.(*ast.StringNode); ok && isName {
			m.names[of.Value+"."+member.Value] = true
		}
		weighed(&n.Property, 1)
	case *ast.SliceNode:
		weighed(&n.From, 1)
		weighed(&n.To, 1)
	case *ast.PairNode:
		weighed(&n.Key, 1)
	}
}

func (m *metered) binary(node *ast.Node, n *ast.BinaryNode) {
	switch n.Operator {
	case "==", "!=":
		if literal(n.Left) || literal(n.Right) {
			return
		}
		var same ast.Node = calls(equal, n.Left, n.Right)
		if n.Operator == "!=" {
			same = &ast.UnaryNode{Operator: "not", Node: same}
		}
		replaced(node, same)
	case "in":
		if !literals(n.Right) {
			replaced(node, calls(inside, n.Left, n.Right))
		}
	case "matches":
		m.pattern(n)
	case "+", "<", "<=", ">", ">=", "contains", "startsWith", "endsWith":
		weighed(&n.Left, 1)
		weighed(&n.Right, 1)
	}
}

// pattern weighs a text by how much a pattern does with each of its characters.
func (m *metered) pattern(n *ast.BinaryNode) {
	text, ok := n.Right.(*ast.StringNode)
	if !ok {
		m.err = errPattern
		return
	}
	parsed, err := syntax.Parse(text.Value, syntax.Perl)
	if err != nil {
		m.err = err
		return
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		m.err = err
		return
	}
	weighed(&n.Left, 1+len(program.Inst))
}

// function counts what a function of the language does; loops count their turns.
func function(node *ast.Node, n *ast.BuiltinNode) {
	if !builtin.Builtins[builtin.Index[n.Name]].Predicate {
		if !(n.Name == "len" && loop(n.Arguments[0])) {
			replaced(node, calls(call, append([]ast.Node{&ast.StringNode{Value: n.Name}}, n.Arguments...)...))
		}
		return
	}
	if len(n.Arguments) == 1 && !loop(n.Arguments[0]) {
		weighed(&n.Arguments[0], 1)
		return
	}
	for _, arg := range n.Arguments {
		if p, ok := arg.(*ast.PredicateNode); ok && (n.Name == "sortBy" || n.Name == "groupBy") {
			weighed(&p.Node, manyTimes)
		}
	}
}

func loop(n ast.Node) bool {
	of, ok := n.(*ast.BuiltinNode)
	return ok && builtin.Builtins[builtin.Index[of.Name]].Predicate
}

func literal(n ast.Node) bool {
	switch n.(type) {
	case *ast.NilNode, *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.StringNode, *ast.ConstantNode:
		return true
	}
	return false
}

// literals says whether a node is an array of literals, or a range.
func literals(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ArrayNode:
		for _, of := range n.Nodes {
			if !literal(of) {
				return false
			}
		}
		return true
	case *ast.BinaryNode:
		return n.Operator == ".."
	}
	return false
}

// weighed makes a node count what it gives, where that is not known.
func weighed(node *ast.Node, times int) {
	if *node != nil && !literal(*node) {
		replaced(node, calls(weigh, &ast.IntegerNode{Value: times}, *node))
	}
}

func calls(name string, args ...ast.Node) *ast.CallNode {
	return &ast.CallNode{Callee: &ast.IdentifierNode{Value: name}, Arguments: args}
}

// replaced puts a node in the place of another. Its type is found anew.
func replaced(node *ast.Node, by ast.Node) {
	by.SetLocation((*node).Location())
	*node = by
}

// nodes counts those of a loop's body.
func nodes(n ast.Node) int {
	c := counter(0)
	ast.Walk(&n, &c)
	return int(c)
}

type counter int

// Visit counts a node.
func (c *counter) Visit(*ast.Node) { *c++ }
