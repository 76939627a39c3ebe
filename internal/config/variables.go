package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

const variablePrefix = "POSTERN_"

// otherVariables are read by commands and examples, and are no settings.
var otherVariables = []string{"POSTERN_ADMIN_TOKEN", "POSTERN_DIR"}

// serviceVariables are set by Kubernetes in each container for a Service whose name begins with postern.
var serviceVariables = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// lookup finds variables in an environment; of one that is there twice, the last.
func lookup(environ []string) func(string) string {
	values := map[string]string{}
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		values[name] = value
	}
	return func(name string) string { return values[name] }
}

// unset says in what way a variable has no value.
func (p *purpose) unset(name string) string {
	if slices.ContainsFunc(p.environ, func(v string) bool { return strings.HasPrefix(v, name+"=") }) {
		return "set, but empty"
	}
	return "not set"
}

// CheckVariables finds variables whose names are a slip or two from a setting's. It is for commands that load no configuration.
func CheckVariables() error {
	asked := map[string]bool{}
	over := &overrides{env: func(name string) string { asked[name] = true; return "" }, set: map[string]string{}}
	over.apply(reflect.ValueOf(&Config{}).Elem(), nil)
	_, err := checkVariables(os.Environ(), asked, over.open)
	return err
}

// checkVariables finds the variables of ours that nothing asked for. One that is a slip or two from a setting's is an error. Others are
// returned as warnings, as are those below an open prefix: their source may be in another process's file.
func checkVariables(environ []string, asked map[string]bool, open []string) (idle []string, err error) {
	known := sortedKeys(asked)
	var bad []error
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, variablePrefix) || asked[name] || slices.Contains(otherVariables, name) || serviceVariables.MatchString(name) {
			continue
		}
		near := meantVariable(name, known)
		below := slices.ContainsFunc(open, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		switch {
		case near != "" && !below:
			bad = append(bad, &Problem{Env: name, Msg: fmt.Sprintf("is no setting; did you mean %s? Rename the variable, or unset it", near)})
		case near != "":
			idle = append(idle, fmt.Sprintf("the variable %s sets nothing; did you mean %s?", name, near))
		default:
			idle = append(idle, fmt.Sprintf("the variable %s sets nothing%s", name, seeSettings))
		}
	}
	slices.Sort(idle)
	return idle, errors.Join(bad...)
}

// meantVariable is the variable of a setting that is a slip or two from a name; "" for none.
func meantVariable(name string, known []string) string {
	best, least := "", 3
	for _, one := range known {
		if d := distance(name, one); strings.HasPrefix(one, variablePrefix) && d < least {
			best, least = one, d
		}
	}
	return best
}
