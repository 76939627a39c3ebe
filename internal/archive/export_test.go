package archive

// What tests of the format and of its files need of this package.
var (
	AppendLine = appendLine
	ParseLine  = parseLine
	ReadBody   = func(l *line) []byte { return l.body }
)
