package declared

import (
	"embed"

	"github.com/postern-gateway/postern/internal/provider"
)

// Sample is a sample out of a provider's own files, which are a part of the program: one that is missing is a fault of the build.
func Sample(files embed.FS, eventType, path string) provider.Sample {
	body, err := files.ReadFile(path)
	if err != nil {
		panic(err)
	}
	return provider.Sample{Type: eventType, Body: body}
}
