package config

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// valueReader reads a document value by value and goes on after one that cannot be read, so that all of them are found. It is
// for documents of which some value is known to be wrong.
type valueReader struct{ bad []error }

// read fills v, as far as the node fits. Whole values are left to the YAML library.
func (r *valueReader) read(node ast.Node, v reflect.Value) {
	if anchor, ok := node.(*ast.AnchorNode); ok {
		node = anchor.Value
	}
	switch {
	case node.Type() == ast.AliasType, node.Type() == ast.NullType: // read where it was anchored; says nothing
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		r.read(node, v.Elem())
	case v.Kind() == reflect.Struct && members(node) != nil:
		r.readStruct(members(node), v)
	case v.Kind() == reflect.Map && members(node) != nil:
		r.readMap(members(node), v)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct && node.Type() == ast.SequenceType:
		for _, element := range node.(*ast.SequenceNode).Values {
			one := reflect.New(v.Type().Elem()).Elem()
			r.read(element, one)
			v.Set(reflect.Append(v, one))
		}
	default:
		if err := yaml.NodeToValue(node, v.Addr().Interface(), yaml.Strict()); err != nil {
			r.bad = append(r.bad, valueProblem(node, err))
		}
	}
}

// valueProblem is a syntaxProblem on the value's line where the library does not say one.
func valueProblem(node ast.Node, err error) error {
	err = syntaxProblem(err)
	if p := new(Problem); errors.As(err, &p) && p.Line == 0 {
		p.Line = node.GetToken().Position.Line
	}
	return err
}

// members are those of a mapping; nil for what is none.
func members(node ast.Node) []*ast.MappingValueNode {
	switch n := node.(type) {
	case *ast.MappingNode:
		return n.Values
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}
	}
	return nil
}

func (r *valueReader) readStruct(members []*ast.MappingValueNode, v reflect.Value) {
	for _, m := range members {
		name, known := m.Key.GetToken().Value, false
		for i := range v.NumField() {
			if yamlName(v.Type().Field(i)) == name && name != "" {
				r.read(m.Value, v.Field(i))
				known = true
			}
		}
		if !known && m.Key.Type() != ast.MergeKeyType {
			r.bad = append(r.bad, &Problem{Line: m.Key.GetToken().Position.Line, Msg: fmt.Sprintf("unknown field %q%s", name, seeSettings)})
		}
	}
}

func (r *valueReader) readMap(members []*ast.MappingValueNode, v reflect.Value) {
	v.Set(reflect.MakeMap(v.Type()))
	for _, m := range members {
		one := reflect.New(v.Type().Elem()).Elem()
		r.read(m.Value, one)
		v.SetMapIndex(reflect.ValueOf(m.Key.GetToken().Value), one)
	}
}
