package telemetry

// Internal functions and values for tests.
var (
	CheckExporter = checkExporter
	NewProvider   = newProvider
	TraceEndpoint = traceEndpoint
)

// FlushTimeout limits the export of the last spans during a stop.
const FlushTimeout = flushTimeout
