package shopify

import (
	"embed"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

//go:embed samples/*.json
var files embed.FS

// sampleShop is the shop of a sample if the source names none.
const sampleShop = "postern-demo.myshopify.com"

// version is the API version of the samples.
const version = "2026-07"

// step is one event of the samples' story: the life of an order and of its objects. Events of one
// object share its file and its id.
type step struct {
	Topic, File string
	// Change is laid over the object.
	Change json.RawMessage
}

// samples are made once, because their JSON takes milliseconds.
var samples = sync.OnceValue(func() (out []provider.Sample) {
	for _, s := range provider.SampleStory[step](files) {
		out = append(out, provider.Sample{Type: s.Topic, Body: slices.Clip(provider.SampleJSON(
			provider.SampleObject(files, "samples/"+s.File+".json", s.Change), ""))})
	}
	return out
})

// Samples returns the events of the story. They have no event id: MakeVariant sets one, and
// otherwise Sign makes one from type and body.
func (Shopify) Samples() []provider.Sample { return slices.Clone(samples()) }

// Sign makes a delivery as Shopify sends it, with the source's first secret. A type like
// "Product/update" is sent in the Events family, any other as a webhook.
func (Shopify) Sign(src *provider.Source, s provider.Sample, at time.Time) (*provider.Delivery, error) {
	if err := provider.CheckSecrets(src, &classic.scheme); err != nil {
		return nil, err
	}
	f := &classic
	if s.Type != "" && inEvents(s.Type) {
		f = &events
	}
	d := &provider.Delivery{Header: http.Header{}, Body: s.Body, ReceivedAt: at}
	d.Header.Set("Accept", "*/*")
	d.Header.Set("Content-Type", "application/json")
	d.Header.Set("User-Agent", "Shopify-Captain-Hook")
	d.Header.Set(f.shop, signedShop(src))
	d.Header.Set(f.version, version)
	d.Header.Set(f.triggeredAt, at.UTC().Format(time.RFC3339Nano))
	f.setTopic(d.Header, s.Type)
	id := s.ID
	if id == "" {
		id = provider.SampleUUID(provider.ContentKey(s.Type, "", s.Body))
	}
	d.Header.Set(f.ids[webhookID], id)
	d.Header.Set(f.ids[eventID], provider.SampleUUID("event of "+id))
	return d, provider.SignDelivery(src, d, &f.scheme, at)
}

// setTopic writes an event type into the family's headers.
func (f *family) setTopic(h http.Header, eventType string) {
	if f.action == "" {
		h.Set(f.topic, eventType)
		return
	}
	topic, action, _ := strings.Cut(eventType, "/")
	h.Set(f.topic, topic)
	h.Set(f.action, action)
}

// signedShop returns the shop that sends a delivery made by Sign: the first one that the source
// names.
func signedShop(src *provider.Source) string {
	for _, shop := range append([]string{src.Account}, src.Accounts...) {
		if name := shopName(shop); name != "" {
			return name
		}
	}
	return sampleShop
}
