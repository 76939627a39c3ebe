package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/signature"
)

// valueReader reads a document value by value and continues after an error, so that all errors are
// found. It is for documents in which some value is wrong.
type valueReader struct {
	errs []error
	// path is the setting that is being read.
	path []string
}

// readChild reads a part of the current value.
func (r *valueReader) readChild(name string, node ast.Node, v reflect.Value) {
	r.path = append(r.path, name)
	r.read(node, v)
	r.path = r.path[:len(r.path)-1]
}

// read sets v, as far as the node matches. The YAML library decodes complete values.
func (r *valueReader) read(node ast.Node, v reflect.Value) {
	if anchor, ok := node.(*ast.AnchorNode); ok {
		node = anchor.Value
	}
	switch {
	case node.Type() == ast.AliasType, node.Type() == ast.NullType: // reported where the anchor is
	case v.Kind() == reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		r.read(node, v.Elem())
	case v.Kind() == reflect.Struct && members(node) != nil && !isText(v):
		r.readStruct(members(node), v)
	case v.Kind() == reflect.Map && members(node) != nil:
		r.readMap(members(node), v)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct && node.Type() == ast.SequenceType &&
		!isText(reflect.New(v.Type().Elem()).Elem()):
		for i, element := range node.(*ast.SequenceNode).Values {
			one := reflect.New(v.Type().Elem()).Elem()
			r.readChild(strconv.Itoa(i), element, one)
			v.Set(reflect.Append(v, one))
		}
	default:
		if err := yaml.NodeToValue(node, v.Addr().Interface(), yaml.Strict()); err != nil {
			r.errs = append(r.errs, r.addProblem(node, v, err))
		}
	}
}

// addProblem records what to write instead of a wrong value, or the library's message where no
// advice is known.
func (r *valueReader) addProblem(node ast.Node, v reflect.Value, err error) error {
	msg := valueAdvice(node, v)
	if msg == "" {
		err = valueProblem(node, err)
		if p := new(settings.Problem); errors.As(err, &p) && p.Path == "" {
			p.Path = strings.Join(r.path, ".")
		}
		return err
	}
	return &settings.Problem{Path: strings.Join(r.path, "."), Line: node.GetToken().Position.Line, Msg: msg}
}

// valueAdvice shows the value only where it cannot be a secret.
func valueAdvice(node ast.Node, v reflect.Value) string {
	scalar, isScalar := node.(ast.ScalarNode)
	text := ""
	if isScalar {
		text = scalar.GetToken().Value
	}
	reference, isReference := unquotedRef(node)
	switch kind := v.Kind(); {
	case isReference && (kind == reflect.String || kind == reflect.Slice || isText(v)):
		return fmt.Sprintf("YAML reads %s as a mapping unless it is quoted: write \"%s\"", reference, reference)
	case !isScalar:
		return ""
	case v.Type() == reflect.TypeFor[time.Duration]():
		example := "500ms, 5s, 10m or 24h"
		if node.Type() == ast.IntegerType {
			example = text + "s"
		}
		return fmt.Sprintf("%q is not a duration with a unit: write e.g. %s", text, example)
	case kind == reflect.Bool:
		word := map[string]string{"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false",
			"0": "false"}[strings.ToLower(text)]
		return fmt.Sprintf("%q is neither true nor false: write %s", text, cmp.Or(word, "one of them"))
	case kind == reflect.Struct:
		if _, err := signature.ParseRef(text); err == nil && v.FieldByName("From").IsValid() {
			return fmt.Sprintf("has settings of its own: write {from: '%s'}", text)
		}
	}
	return ""
}

// valueProblem is a syntaxProblem on the value's line, where the library has no line.
func valueProblem(node ast.Node, err error) error {
	err = syntaxProblem(err, nil)
	if p := new(settings.Problem); errors.As(err, &p) && p.Line == 0 {
		p.Line = node.GetToken().Position.Line
	}
	return err
}

// members returns the members of a mapping; nil for other nodes.
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
		name, known, fields := m.Key.GetToken().Value, false, []string(nil)
		for field, key := range settingsOf(v) {
			fields = append(fields, key)
			if key == name {
				r.readChild(name, m.Value, field)
				known = true
			}
		}
		if !known && m.Key.Type() != ast.MergeKeyType {
			r.errs = append(r.errs, unknownField(r.path, name, fields, m.Key.GetToken().Position.Line))
		}
	}
}

func (r *valueReader) readMap(members []*ast.MappingValueNode, v reflect.Value) {
	v.Set(reflect.MakeMap(v.Type()))
	for _, m := range members {
		one := reflect.New(v.Type().Elem()).Elem()
		r.readChild(m.Key.GetToken().Value, m.Value, one)
		v.SetMapIndex(reflect.ValueOf(m.Key.GetToken().Value), one)
	}
}
