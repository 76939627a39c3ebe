// Package zoom is the provider Zoom. To verify an address, Zoom requests a MAC over a text of its
// choice, under the key that signs deliveries. The gateway computes it only for a request that is
// itself signed with that key.
package zoom

import (
	"crypto/hmac"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"regexp"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

//go:embed spec.yaml samples
var files embed.FS

// New returns the provider.
var New = declared.Embedded(files, complete)

func complete(s *declared.Spec) {
	scheme := s.Schemes[0]
	s.Handshake = func(src *provider.Source, d *provider.Delivery) *provider.Reply {
		return handshake(scheme, src, d)
	}
}

// plainToken matches the text of a verification. It does not match a text that a delivery's
// signature covers: those begin with "v0:".
var plainToken = regexp.MustCompile(`^[0-9A-Za-z_+/=-]{1,128}$`)

// handshake responds to the verification of an address with the MAC of Zoom's text. It is called
// after the delivery's own signature was verified, and uses only the secret that matched.
func handshake(scheme *signature.Scheme, src *provider.Source, d *provider.Delivery) *provider.Reply {
	body, err := canonical.Parse(d.Body)
	if err != nil {
		return nil
	}
	event, _ := body.Get("event").Text()
	plain, _ := body.Get("payload").Get("plainToken").Text()
	if event != "endpoint.url_validation" || !plainToken.MatchString(plain) {
		return nil
	}
	for _, secret := range src.Secrets {
		one := *src
		one.Secrets = []provider.Secret{secret}
		if _, err := provider.VerifySchemes(&one, d, scheme); err != nil {
			continue
		}
		mac := hmac.New(sha256.New, secret.Value)
		mac.Write([]byte(plain))
		answer, err := json.Marshal(map[string]string{"plainToken": plain,
			"encryptedToken": hex.EncodeToString(mac.Sum(nil))})
		if err != nil {
			return nil
		}
		return &provider.Reply{ContentType: "application/json", Body: answer}
	}
	return nil
}
