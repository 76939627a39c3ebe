package github

import (
	"bytes"
	"embed"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

//go:embed samples/*.json
var files embed.FS

// step is one event of the samples' story: a leaking kettle, and its repair.
type step struct {
	// Event is the type: the event's name and its action.
	Event string
	// Member is the member of the body for the object in the file. Empty means that the file is the
	// body.
	Member, File string
	// Change is laid over the object.
	Change json.RawMessage
	// Rest are further members of the body. A text in angle brackets is replaced by the file of
	// that name.
	Rest json.RawMessage
	// App means that the event belongs to no repository.
	App bool
}

// samples are made once, because their JSON takes milliseconds.
var samples = sync.OnceValue(func() (out []provider.Sample) {
	for _, s := range provider.SampleStory[step](files) {
		out = append(out, provider.Sample{Type: s.Event, Body: slices.Clip(s.body())})
	}
	return out
})

// Samples returns the events of the story. They have no delivery id: MakeVariant sets one, and
// otherwise Sign makes one from type and body.
func (GitHub) Samples() []provider.Sample { return slices.Clone(samples()) }

// body returns the event as GitHub sends it, compact.
func (s step) body() []byte {
	root := map[string]json.RawMessage{"sender": file("user", nil)}
	if !s.App {
		root["repository"] = file("repository", nil)
	}
	if _, action, ok := strings.Cut(s.Event, "."); ok {
		root["action"] = provider.SampleJSON(action, "")
	}
	switch {
	case s.Member != "":
		root[s.Member] = file(s.File, s.Change)
	case s.File != "":
		maps.Copy(root, provider.SampleObject(files, "samples/"+s.File+".json", s.Change))
	}
	maps.Copy(root, provider.SampleObject(files, "", s.Rest))
	for name, value := range root {
		if inner, ok := bytes.CutPrefix(value, []byte(`"<`)); ok {
			root[name] = file(strings.TrimSuffix(string(inner), `>"`), nil)
		}
	}
	return provider.SampleJSON(root, "")
}

func file(name string, change json.RawMessage) []byte {
	return provider.SampleJSON(provider.SampleObject(files, "samples/"+name+".json", change), "")
}

// Sign makes a delivery as GitHub sends it as JSON, with the source's first secret.
func (GitHub) Sign(src *provider.Source, s provider.Sample, at time.Time) (*provider.Delivery, error) {
	d := &provider.Delivery{Header: http.Header{}, Body: s.Body, ReceivedAt: at}
	event, _, _ := strings.Cut(s.Type, ".")
	id := s.ID
	if id == "" {
		id = provider.SampleUUID(provider.ContentKey(s.Type, "", s.Body))
	}
	d.Header.Set("Accept", "*/*")
	d.Header.Set("Content-Type", "application/json")
	d.Header.Set("User-Agent", "GitHub-Hookshot/0000000")
	d.Header.Set(eventHeader, event)
	d.Header.Set(deliveryHeader, id)
	d.Header.Set("X-Github-Hook-Id", "700450")
	if err := provider.SignDelivery(src, d, &scheme, at); err != nil {
		return nil, err
	}
	return d, nil
}
