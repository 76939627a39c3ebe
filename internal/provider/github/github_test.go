package github_test

import (
	"flag"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

var update = flag.Bool("update", false, "write the golden files")

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: github.GitHub{},
		Source: &provider.Source{Name: "github", Secrets: []provider.Secret{
			{Name: "new", Value: []byte("a new secret of a test")}, {Name: "old", Value: []byte("an old secret of a test")}}},
		Signature: "X-Hub-Signature-256",
		NoKey: func(_ *testing.T, _ *provider.Source, d *provider.Delivery) {
			d.Header.Del("X-GitHub-Delivery")
		},
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, suite())
}

func TestSamplesAreReadAsBefore(t *testing.T) {
	t.Parallel()
	providertest.Golden(t, suite(), "testdata/samples.golden", *update)
}

func TestSamplesInAnyOrder(t *testing.T) {
	t.Parallel()
	providertest.AnyOrder(t, suite())
}
