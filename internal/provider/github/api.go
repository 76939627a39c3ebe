package github

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
)

var (
	_ provider.Reader             = GitHub{}
	_ provider.Locator            = GitHub{}
	_ provider.AccountBoundReader = GitHub{}
	_ provider.DeliveryLister     = GitHub{}
	_ provider.PartLister         = GitHub{}
)

const (
	baseURL = "https://api.github.com"
	// version is the API version; bodies of webhooks have none
	// (https://docs.github.com/en/rest/about-the-rest-api/api-versions).
	version = "2022-11-28"
	// GitHub allows 900 points a minute for one user or app (a GET is one point), and 5,000 calls
	// an hour, of which Answer leaves half to other programs
	// (https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api).
	rate, concurrency = 5, 4
	pageSize          = "100"
)

var (
	apiVersion = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}$`)
	repository = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}/[A-Za-z0-9._-]{1,100}$`)
	hook       = regexp.MustCompile(
		`^(repos/[A-Za-z0-9_-]{1,100}/[A-Za-z0-9._-]{1,100}|orgs/[A-Za-z0-9_-]{1,100})/hooks/[1-9][0-9]{0,18}$`)
)

// CallsNameAccount: the paths contain the repository, or the webhook.
func (GitHub) CallsNameAccount() {}

// CompleteAPI fills in GitHub's address, an API version and a rate.
func (GitHub) CompleteAPI(api *provider.API) error {
	if strings.HasPrefix(string(api.Key.Value), "ghr_") {
		return errors.New("key: is a refresh token, which reads nothing: make a fine-grained personal access token " +
			"that may read webhooks and what the source mirrors")
	}
	if api.Version == "" {
		api.Version = version
	}
	if !apiVersion.MatchString(api.Version) {
		return fmt.Errorf("version: %.40q is not a version of GitHub's API: write a date like %s, or leave it out",
			api.Version, version)
	}
	for i, name := range api.Repositories {
		if !isRepository(name) {
			return fmt.Errorf("repositories: %.100q is not a repository: write OWNER/NAME", name)
		}
		if slices.ContainsFunc(api.Repositories[:i],
			func(other string) bool { return strings.EqualFold(other, name) }) {
			// repositories are read one after the other, and identified by name
			return fmt.Errorf("repositories: %q is named twice: name it once", name)
		}
	}
	for _, name := range api.Webhooks {
		if !hook.MatchString(name) || strings.Contains(name, "/./") || strings.Contains(name, "/../") {
			return fmt.Errorf("hooks: %.100q is not a webhook: write repos/OWNER/NAME/hooks/ID or "+
				"orgs/NAME/hooks/ID, where ID is the number at the end of the address of the webhook's settings; the "+
				"webhooks of an app need a key that expires after ten minutes, so they cannot be read", name)
		}
	}
	if api.BaseURL == "" {
		api.BaseURL = baseURL
	}
	if api.Rate == 0 {
		api.Rate = rate
	}
	if api.Concurrency == 0 {
		api.Concurrency = concurrency
	}
	return nil
}

// isRepository rejects . and .., which servers resolve in paths.
func isRepository(name string) bool {
	return repository.MatchString(name) && !strings.HasSuffix(name, "/.") && !strings.HasSuffix(name, "/..")
}

// Authorize sends the key as a bearer token, and the version.
func (GitHub) Authorize(api *provider.API, h http.Header) {
	h.Set("Authorization", "Bearer "+string(api.Key.Value))
	h.Set("Accept", "application/vnd.github+json")
	if h.Get("X-Github-Api-Version") == "" {
		h.Set("X-Github-Api-Version", api.Version)
	}
}

// CredentialCheck reads the index of the API, which every valid key may read.
func (GitHub) CredentialCheck(*provider.API, string) provider.Call { return provider.Call{Path: "/"} }

// Fetch returns no call: GitHub reads objects by names and numbers that the object's name in the
// mirror does not contain. Locate finds them.
func (GitHub) Fetch(*provider.Source, *provider.API, string, string, string) (provider.Call, bool) {
	return provider.Call{}, false
}
