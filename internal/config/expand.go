package config

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/postern-gateway/postern/internal/settings"
)

// reference matches ${NAME}, and $${NAME}, which stands for the text ${NAME}.
var reference = regexp.MustCompile(`\$?\$\{([^}]*)\}`)

// expander replaces ${NAME} in string values by the variable's value. It leaves keys unchanged.
type expander struct {
	env  func(string) string
	opts loadOptions // where secrets are read, an unset variable is an error
	errs []error
}

func expand(root ast.Node, env func(string) string, p loadOptions) error {
	e := &expander{env: env, opts: p}
	ast.Walk(e, root)
	return errors.Join(e.errs...)
}

// Visit is called by ast.Walk for every node.
func (e *expander) Visit(n ast.Node) ast.Visitor {
	switch n := n.(type) {
	case *ast.MappingValueNode:
		ast.Walk(e, n.Value)
		return nil
	case *ast.StringNode:
		n.Value = e.replace(n.Value, n.GetToken().Position.Line)
	case *ast.LiteralNode:
		n.Value.Value = e.replace(n.Value.Value, n.Value.GetToken().Position.Line)
		return nil
	}
	return e
}

func (e *expander) replace(s string, line int) string {
	return reference.ReplaceAllStringFunc(s, func(ref string) string {
		if strings.HasPrefix(ref, "$$") {
			return ref[1:]
		}
		name := ref[2 : len(ref)-1]
		value := e.env(name)
		if value == "" && e.opts.secrets {
			e.errs = append(e.errs, &settings.Problem{Line: line,
				Msg: fmt.Sprintf("%s: the variable is %s; set it, or write "+
					"$%s for the text itself", ref, e.opts.missingReason(name), ref)})
		}
		return value
	})
}
