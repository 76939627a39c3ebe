package telemetry

import "runtime/debug"

// commit is set by the linker in builds with make.
var commit string

// Version returns the module's version and the commit of the build. The commit is empty where the
// build did not record it.
func Version() (version, revision string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown", commit
	}
	revision = commit
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && revision == "" {
			revision = s.Value
		}
	}
	return info.Main.Version, revision
}
