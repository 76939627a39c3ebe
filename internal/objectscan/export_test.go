package objectscan

// WalkSQL reads one part of the mirror.
const WalkSQL = walkSQL

// IsIgnored reports whether a field is one of the ignored paths.
func IsIgnored(ignoredPaths []string, path string) bool {
	return (&item{ignoredPaths: ignoredPaths}).isIgnored(path)
}
