package rules

import (
	"errors"
	"regexp/syntax"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/builtin"
)

// Functions that count work. Expressions cannot spell these names.
const (
	countIterationFunc = "\x00turn"
	weighFunc          = "\x00weigh"
	equalFunc          = "\x00equal"
	inFunc             = "\x00in"
	builtinFunc        = "\x00call"
)

// sortComparisons is an estimate of how often a sort compares one key.
const sortComparisons = 16

var errDynamicPattern = errors.New("the pattern of matches has to be a literal in quotes")

// instrumenter changes an expression so that it counts its work: each iteration of a loop, and each
// operation whose cost grows with a value.
type instrumenter struct {
	err error
	// usesSteps reports that the expression uses values that earlier steps captured.
	usesSteps bool
	// usedNames are the names that the expression uses, such as new and event.id.
	usedNames map[string]bool
}

// Visit is called for each node, inner nodes first.
func (m *instrumenter) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.IdentifierNode:
		m.usesSteps = m.usesSteps || n.Value == "steps"
		m.usedNames[n.Value] = true
	case *ast.PredicateNode:
		n.Node = &ast.ConditionalNode{Cond: newCall(countIterationFunc, &ast.IntegerNode{Value: countNodes(n.Node)}),
			Exp1: n.Node, Exp2: &ast.NilNode{}}
	case *ast.BinaryNode:
		m.instrumentBinary(node, n)
	case *ast.BuiltinNode:
		instrumentFunction(node, n)
	case *ast.CallNode:
		n.SetType(nil) // its arguments may have changed, so that it is checked again
	case *ast.MemberNode:
		of, isName := n.Node.(*ast.IdentifierNode)
		if member, ok := n.Property.(*ast.StringNode); ok && isName {
			m.usedNames[of.Value+"."+member.Value] = true
		}
		addWeight(&n.Property, 1)
	case *ast.SliceNode:
		addWeight(&n.From, 1)
		addWeight(&n.To, 1)
	case *ast.PairNode:
		addWeight(&n.Key, 1)
	}
}

// instrumentBinary counts the work of a binary operator.
func (m *instrumenter) instrumentBinary(node *ast.Node, n *ast.BinaryNode) {
	switch n.Operator {
	case "==", "!=":
		if isLiteral(n.Left) || isLiteral(n.Right) {
			return
		}
		var same ast.Node = newCall(equalFunc, n.Left, n.Right)
		if n.Operator == "!=" {
			same = &ast.UnaryNode{Operator: "not", Node: same}
		}
		replaceNode(node, same)
	case "in":
		if !isLiteralList(n.Right) {
			replaceNode(node, newCall(inFunc, n.Left, n.Right))
		}
	case "matches":
		m.weighPattern(n)
	case "+", "<", "<=", ">", ">=", "contains", "startsWith", "endsWith":
		addWeight(&n.Left, 1)
		addWeight(&n.Right, 1)
	}
}

// weighPattern weighs a text by the work that a pattern does for each of its characters.
func (m *instrumenter) weighPattern(n *ast.BinaryNode) {
	text, ok := n.Right.(*ast.StringNode)
	if !ok {
		m.err = errDynamicPattern
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
	addWeight(&n.Left, 1+len(program.Inst))
}

// instrumentFunction counts the work of a builtin function; loops count their iterations.
func instrumentFunction(node *ast.Node, n *ast.BuiltinNode) {
	if !builtin.Builtins[builtin.Index[n.Name]].Predicate {
		if !(n.Name == "len" && isLoop(n.Arguments[0])) {
			replaceNode(node, newCall(builtinFunc, append([]ast.Node{&ast.StringNode{Value: n.Name}},
				n.Arguments...)...))
		}
		return
	}
	if len(n.Arguments) == 1 && !isLoop(n.Arguments[0]) {
		addWeight(&n.Arguments[0], 1)
		return
	}
	for _, arg := range n.Arguments {
		if p, ok := arg.(*ast.PredicateNode); ok && (n.Name == "sortBy" || n.Name == "groupBy") {
			addWeight(&p.Node, sortComparisons)
		}
	}
}

func isLoop(n ast.Node) bool {
	of, ok := n.(*ast.BuiltinNode)
	return ok && builtin.Builtins[builtin.Index[of.Name]].Predicate
}

func isLiteral(n ast.Node) bool {
	switch n.(type) {
	case *ast.NilNode, *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.StringNode, *ast.ConstantNode:
		return true
	}
	return false
}

// isLiteralList reports whether a node is an array of literals, or a range.
func isLiteralList(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ArrayNode:
		for _, of := range n.Nodes {
			if !isLiteral(of) {
				return false
			}
		}
		return true
	case *ast.BinaryNode:
		return n.Operator == ".."
	}
	return false
}

// addWeight makes a node count the size of its value, unless it is a literal.
func addWeight(node *ast.Node, times int) {
	if *node != nil && !isLiteral(*node) {
		replaceNode(node, newCall(weighFunc, &ast.IntegerNode{Value: times}, *node))
	}
}

func newCall(name string, args ...ast.Node) *ast.CallNode {
	return &ast.CallNode{Callee: &ast.IdentifierNode{Value: name}, Arguments: args}
}

// replaceNode replaces a node. The checker then infers its type again.
func replaceNode(node *ast.Node, by ast.Node) {
	by.SetLocation((*node).Location())
	*node = by
}

// countNodes counts the nodes of a loop's body.
func countNodes(n ast.Node) int {
	c := nodeCounter(0)
	ast.Walk(&n, &c)
	return int(c)
}

type nodeCounter int

func (c *nodeCounter) Visit(*ast.Node) { *c++ }
