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
	builtinFunc        = "\x00call"
)

// sortComparisons is an estimate of how often a sort compares one key.
const sortComparisons = 16

var errDynamicPattern = errors.New("the pattern of matches has to be a literal in quotes")

// instrumenter changes an expression so that it counts its work: each iteration of a loop, and the
// size of each value that an operator or a function visits.
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
		n.Node = &ast.ConditionalNode{Cond: newCall(countIterationFunc), Exp1: n.Node, Exp2: &ast.NilNode{}}
	case *ast.BinaryNode:
		m.instrumentBinary(n)
	case *ast.BuiltinNode:
		instrumentFunction(node, n)
	case *ast.CallNode:
		for i := range n.Arguments {
			addWeight(&n.Arguments[i], 1)
		}
		n.SetType(nil) // its arguments may have changed, so that it is checked again
	case *ast.MemberNode:
		of, isName := n.Node.(*ast.IdentifierNode)
		if member, ok := n.Property.(*ast.StringNode); ok && isName {
			m.usedNames[of.Value+"."+member.Value] = true
		}
		addWeight(&n.Property, 1)
	case *ast.PairNode:
		addWeight(&n.Key, 1)
	}
}

// instrumentBinary counts the work of a binary operator.
func (m *instrumenter) instrumentBinary(n *ast.BinaryNode) {
	switch n.Operator {
	case "==", "!=":
		if isLiteral(n.Left) || isLiteral(n.Right) {
			return
		}
	case "matches":
		addWeight(&n.Left, m.patternWork(n.Right))
		return
	case "+", "<", "<=", ">", ">=", "contains", "startsWith", "endsWith", "in":
	default:
		return
	}
	addWeight(&n.Left, 1)
	addWeight(&n.Right, 1)
}

// patternWork returns the work that a pattern does for each character of a text.
func (m *instrumenter) patternWork(pattern ast.Node) int {
	text, ok := pattern.(*ast.StringNode)
	if !ok {
		m.err = errDynamicPattern
		return 1
	}
	parsed, err := syntax.Parse(text.Value, syntax.Perl)
	if err != nil {
		m.err = err
		return 1
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		m.err = err
		return 1
	}
	return 1 + len(program.Inst)
}

// instrumentFunction counts the work of a builtin function; loops count their iterations.
func instrumentFunction(node *ast.Node, n *ast.BuiltinNode) {
	switch {
	case !builtin.Builtins[builtin.Index[n.Name]].Predicate:
		replaceNode(node, newCall(builtinFunc, append([]ast.Node{&ast.StringNode{Value: n.Name}}, n.Arguments...)...))
	case len(n.Arguments) == 1:
		addWeight(&n.Arguments[0], 1)
	case n.Name == "sortBy" || n.Name == "groupBy":
		addWeight(&n.Arguments[1].(*ast.PredicateNode).Node, sortComparisons)
	}
}

// isLiteral reports whether a node is a literal or a range, whose evaluation takes no work.
func isLiteral(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.NilNode, *ast.BoolNode, *ast.IntegerNode, *ast.FloatNode, *ast.StringNode, *ast.ConstantNode:
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
