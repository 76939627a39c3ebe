package declared

import (
	"embed"

	"github.com/postern-gateway/postern/internal/provider"
)

// LoadSample reads a sample from a provider's embedded files. It panics if the file is missing,
// because that is a build error.
func LoadSample(files embed.FS, eventType, path string) provider.Sample {
	body, err := files.ReadFile(path)
	if err != nil {
		panic(err)
	}
	return provider.Sample{Type: eventType, Body: body}
}
