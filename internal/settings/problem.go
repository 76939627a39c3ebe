package settings

import (
	"strconv"
	"strings"
)

// Problem is one error in a configuration: where it is, what is wrong and what to do.
type Problem struct {
	// File and Line (from 1) are the place of the error; empty and 0 where it is not in a file.
	File string
	Line int
	// Env is the variable with the error, if it is in a variable.
	Env string
	// Path is the dotted setting, e.g. sources.shop.secrets.0.name.
	Path string
	// Msg says what is wrong and what to do. It never contains a secret.
	Msg string
}

// Error returns "file:line: path: message", or "VARIABLE: message".
func (p *Problem) Error() string {
	var parts []string
	switch {
	case p.Env != "":
		parts = append(parts, p.Env)
	case p.Line > 0:
		file := p.File
		if file == "" {
			file = "line "
		} else {
			file += ":"
		}
		parts = append(parts, file+strconv.Itoa(p.Line))
	case p.File != "":
		parts = append(parts, p.File)
	}
	if p.Path != "" && p.Env == "" {
		parts = append(parts, p.Path)
	}
	return strings.Join(append(parts, p.Msg), ": ")
}
