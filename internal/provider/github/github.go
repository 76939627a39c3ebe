// Package github reads GitHub's webhooks, as JSON or as a form. GitHub signs the body and nothing else: the event's name and
// the delivery's id travel in headers that anyone who captured a delivery can change; what happened to the object, the action,
// is in the body. So a body is believed only under the event whose body it can be, a delete only from a body that is nothing
// else, and what each event means is one table, in types.go. A captured body sent again under another delivery id is one more
// event of an old version, or the same delete, and changes nothing.
//
// Events and objects are kept under no account: GitHub's ids are its own for every owner, owners are renamed, and objects pass
// from one to another under the same id, so that an account in their name would tear them apart. A source's account or
// accounts are the owners, by login, whose deliveries it takes; see [GitHub.Identify].
package github

import (
	"errors"
	"fmt"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// GitHub is the provider.
type GitHub struct{}

var _ provider.Provider = GitHub{}

// The headers that name an event (https://docs.github.com/en/webhooks/webhook-events-and-payloads#delivery-headers).
const (
	eventHeader     = "X-Github-Event"
	deliveryHeader  = "X-Github-Delivery"
	signatureHeader = "X-Hub-Signature-256"
	sha1Header      = "X-Hub-Signature"
)

// scheme is how GitHub signs (https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries). Of a form it
// signs the form, not the JSON in it.
var scheme = signature.Scheme{
	Name: "github-sha256",
	Signature: signature.Layout{
		In:     []signature.Ref{{Kind: signature.Header, Name: signatureHeader}},
		Prefix: "sha256=",
	},
	Message: signature.MustTemplate("{body}"),
}

// Name is "github".
func (GitHub) Name() string { return "github" }

// Check wants a secret. An account, if there is one, is the login of an organization or a user.
func (GitHub) Check(src *provider.Source) error {
	if err := provider.CheckSecrets(src, &scheme); err != nil {
		return err
	}
	for _, login := range allowed(src) {
		if login != "*" && !isLogin(login) {
			return fmt.Errorf("account: %q is no login of an organization or a user; write it like octo-org, without a repository", login)
		}
	}
	if src.Key != "" {
		return fmt.Errorf("key: %q is not known; GitHub leaves no choice, an event is named by its delivery's id", src.Key)
	}
	return nil
}

// Headers are the request headers kept with an event.
func (GitHub) Headers() []string {
	return []string{"Content-Type", "User-Agent", eventHeader, deliveryHeader, "X-Github-Hook-Id", "X-Github-Hook-Installation-Target-Id",
		"X-Github-Hook-Installation-Target-Type", "X-Github-Enterprise-Host", "X-Github-Enterprise-Version", signatureHeader, sha1Header}
}

// Verify proves the sender by the HMAC of the body. GitHub signs no time, so none is judged. The older SHA-1 signature, which
// GitHub still sends beside the other, proves nothing by itself.
func (GitHub) Verify(src *provider.Source, d *provider.Delivery) (provider.Verification, error) {
	v, err := provider.Prove(src, d, &scheme)
	var r *provider.Rejection
	if errors.As(err, &r) && r.Reason == provider.MissingSignature {
		r.Detail = "no " + signatureHeader + " header; GitHub signs only where the webhook has a secret"
		if d.Header.Get(sha1Header) != "" {
			r.Detail = "no " + signatureHeader + " header; the SHA-1 signature in " + sha1Header + " is not taken, since GitHub sends both and the weaker one proves less"
		}
	}
	return v, err
}

// isLogin tells whether a text can be a login: letters, digits and hyphens, and the underscore of managed users.
func isLogin(s string) bool {
	odd := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}
	return s != "" && len(s) <= 100 && !strings.ContainsFunc(s, odd)
}
