// Package github implements the provider GitHub: its webhooks, as JSON or as a form, and its API.
// GitHub signs only the body. The event's name and the delivery's id are in unsigned headers, which
// anyone with a captured delivery can change; the action is in the body. So a body is accepted only
// under an event whose body it can be, and a delete only from a body that can be nothing else. The
// table in types.go says what each event means. A captured body sent again under another delivery
// id is another event of an old version, or the same delete, and changes nothing. The package makes
// no calls and stores nothing.
//
// Events and objects are stored without an account. GitHub's ids are unique over all owners. Owners
// are renamed, and objects move between owners under the same id, so an account would split one
// object into several. The account or accounts of a source are the logins of the owners whose
// deliveries it accepts; see [GitHub.Identify].
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

// The headers that identify an event
// (https://docs.github.com/en/webhooks/webhook-events-and-payloads#delivery-headers).
const (
	eventHeader     = "X-Github-Event"
	deliveryHeader  = "X-Github-Delivery"
	signatureHeader = "X-Hub-Signature-256"
	sha1Header      = "X-Hub-Signature"
)

// scheme is GitHub's signature scheme
// (https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries). GitHub signs
// a form as a form, not the JSON in it.
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

// Check requires a secret. Each of the accounts must be the login of an organization or a user. A
// GitHub source has no account of its own, because its objects are stored without one.
func (GitHub) Check(src *provider.Source) error {
	if err := provider.CheckSecrets(src, &scheme); err != nil {
		return err
	}
	if src.Account != "" {
		return fmt.Errorf("account: a GitHub source names the organizations and users whose deliveries it accepts in "+
			"accounts; write accounts: [%s]", src.Account)
	}
	for _, login := range src.Accounts {
		if login != "*" && !isLogin(login) {
			return fmt.Errorf("accounts: %q is not a login of an organization or a user; write it like octo-org, "+
				"without a repository", login)
		}
	}
	if src.Key != "" {
		return fmt.Errorf("key: %q is not known; the key of a GitHub event is always its delivery's id, leave it out",
			src.Key)
	}
	return nil
}

// Headers returns the request headers that are stored with an event.
func (GitHub) Headers() []string {
	return []string{"Content-Type", "User-Agent", eventHeader, deliveryHeader, "X-Github-Hook-Id",
		"X-Github-Hook-Installation-Target-Id", "X-Github-Hook-Installation-Target-Type", "X-Github-Enterprise-Host",
		"X-Github-Enterprise-Version", signatureHeader, sha1Header}
}

// Verify verifies the sender by the HMAC of the body. GitHub signs no time, so none is checked. The
// older SHA-1 signature, which GitHub still sends too, is not accepted.
func (GitHub) Verify(src *provider.Source, d *provider.Delivery) (provider.Verification, error) {
	v, err := provider.VerifySchemes(src, d, &scheme)
	var r *provider.Rejection
	if errors.As(err, &r) && r.Reason == provider.MissingSignature {
		r.Detail = "no " + signatureHeader + " header; GitHub signs only if the webhook has a secret"
		if d.Header.Get(sha1Header) != "" {
			r.Detail = "no " + signatureHeader + " header; the SHA-1 signature in " + sha1Header +
				" is not accepted, because it is weaker and GitHub sends both"
		}
	}
	return v, err
}

// isLogin reports whether a text can be a login: letters, digits and hyphens, and the underscore of
// managed users.
func isLogin(s string) bool {
	invalid := func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}
	return s != "" && len(s) <= 100 && !strings.ContainsFunc(s, invalid)
}
