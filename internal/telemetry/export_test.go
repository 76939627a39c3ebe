package telemetry

// What the tests of this package reach into.
var (
	CheckExporter = checkExporter
	NewProvider   = newProvider
	TraceEndpoint = traceEndpoint
)

// FlushWithin is the part of a stop that the last spans may take.
const FlushWithin = flushWithin
