package reconcile

import (
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/refetch"
)

// WalkSQL reads one part of the mirror.
const WalkSQL = walkSQL

// IsIgnored reports whether a field is one of the ignored paths.
func IsIgnored(ignoredPaths []string, path string) bool {
	return (&item{ignoredPaths: ignoredPaths}).isIgnored(path)
}

// ListScope returns the scope of the list of a type, as an object scan stores it.
func ListScope(s *providerapi.Source, objectType string) string {
	of := &objectScan{execution: &execution{Fetcher: refetch.Fetcher{Source: s}},
		lister:     s.Reader.(provider.ObjectLister),
		objectType: objectType}
	return of.listScope()
}
