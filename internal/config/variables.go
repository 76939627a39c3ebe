package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/settings"
)

const variablePrefix = "POSTERN_"

// commandVariables are used by commands and examples. They are not settings.
var commandVariables = []string{"POSTERN_ADMIN_TOKEN", "POSTERN_DIR"}

// serviceVariables are those that Kubernetes sets in each container for a Service whose name begins
// with postern.
var serviceVariables = regexp.MustCompile(
	`_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// lookupIn finds a variable in an environment. If it is there twice, the last one counts.
func lookupIn(environ []string) func(string) string {
	values := map[string]string{}
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		values[name] = value
	}
	return func(name string) string { return values[name] }
}

// missingReason says why a variable has no value.
func (p *loadOptions) missingReason(name string) string {
	if slices.ContainsFunc(p.environ, func(v string) bool { return strings.HasPrefix(v, name+"=") }) {
		return "set, but empty"
	}
	return "not set"
}

// CheckVariables finds variables whose names are close to a setting's. It is for commands that load
// no configuration.
func CheckVariables() error {
	asked := map[string]bool{}
	over := &overrides{env: func(name string) string { asked[name] = true; return "" }, paths: map[string]string{}}
	over.apply(reflect.ValueOf(&Config{}).Elem(), nil)
	_, err := checkVariables(os.Environ(), asked, over.openPrefixes)
	return err
}

// checkVariables finds POSTERN_ variables that set nothing. A name close to a setting's variable is
// an error. Others are returned as warnings, and so are those below an open prefix: their source
// may be in another process's file.
func checkVariables(environ []string, asked map[string]bool, open []string) (idle []string, err error) {
	known := sortedKeys(asked)
	var bad []error
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, variablePrefix) || asked[name] || slices.Contains(commandVariables, name) ||
			serviceVariables.MatchString(name) {
			continue
		}
		near := closestVariable(name, known)
		below := slices.ContainsFunc(open, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		switch {
		case near != "" && !below:
			bad = append(bad, &settings.Problem{Env: name,
				Msg: fmt.Sprintf("is not a setting; did you mean %s? Rename the variable, or unset it", near)})
		case near != "":
			idle = append(idle, fmt.Sprintf("the variable %s sets nothing; did you mean %s?", name, near))
		default:
			idle = append(idle, fmt.Sprintf("the variable %s sets nothing%s", name, seeSettings))
		}
	}
	slices.Sort(idle)
	return idle, errors.Join(bad...)
}

// closestVariable returns the setting's variable within edit distance two of a name; "" for none.
func closestVariable(name string, known []string) string {
	best, least := "", 3
	for _, one := range known {
		if d := editDistance(name, one); strings.HasPrefix(one, variablePrefix) && d < least {
			best, least = one, d
		}
	}
	return best
}
