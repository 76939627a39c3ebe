package declared

import (
	"embed"
	"fmt"
	"sync"

	"github.com/goccy/go-yaml"

	"github.com/postern-gateway/postern/internal/provider"
)

// Embedded returns the constructor of a provider whose package embeds its Spec as spec.yaml, and
// its samples in the folder samples. Complete sets what the file cannot say; it may be nil. The
// constructor reads the files once. It panics if they are wrong, because that is a build error.
func Embedded(files embed.FS, complete func(*Spec)) func() *Provider {
	return sync.OnceValue(func() *Provider {
		spec, err := load(files)
		if err != nil {
			panic(fmt.Sprintf("provider %s: %v", spec.Name, err))
		}
		if complete != nil {
			complete(&spec)
		}
		return New(spec)
	})
}

func load(files embed.FS) (Spec, error) {
	var file struct {
		Spec      `yaml:",inline"`
		Handshake Handshake `yaml:"handshake"`
		Reply     Reply     `yaml:"reply"`
		Samples   []struct {
			Type string `yaml:"type"`
			File string `yaml:"file"`
		} `yaml:"samples"`
	}
	text, err := files.ReadFile("spec.yaml")
	if err != nil {
		return file.Spec, err
	}
	if err := yaml.UnmarshalWithOptions(text, &file, yaml.Strict()); err != nil {
		return file.Spec, err
	}
	spec := file.Spec
	for i, scheme := range spec.Schemes {
		spec.Schemes[i] = scheme.Complete()
	}
	spec.Respond(file.Handshake, file.Reply)
	for _, s := range file.Samples {
		body, err := files.ReadFile("samples/" + s.File)
		if err != nil {
			return spec, err
		}
		spec.Samples = append(spec.Samples, provider.Sample{Type: s.Type, Body: body})
	}
	return spec, nil
}
