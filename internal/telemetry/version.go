package telemetry

import "runtime/debug"

// commit is set by the linker in builds by make.
var commit string

// Version is the module's version and the commit, as the binary was built. The commit is empty where the build did not know it.
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
