package signature

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Sign signs a request as the sender would at the given time. It sets the time and the signature in
// the places that the scheme names. If they are in a JSON body or a form, the body is formatted
// again.
func (s *Scheme) Sign(secret []byte, r *Request, at time.Time) error {
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if s.When != nil && s.When.Is != "" {
		if err := setValue(r, s.When.From, s.When.Is); err != nil {
			return err
		}
	}
	c := &claim{}
	if s.Timestamp != nil {
		c.timestamp = s.Timestamp.Unit.format(at)
		if s.Timestamp.From.Kind != Item {
			if err := setValue(r, s.Timestamp.From, c.timestamp); err != nil {
				return err
			}
		}
	}
	if s.Body != nil {
		if err := setValue(r, s.Body.From, s.Body.Encoding.encode(s.Body.Digest.sum(r.Body))); err != nil {
			return err
		}
	}
	signed, err := s.sign(secret, &values{request: r, claim: c, secret: secret})
	if err != nil {
		return err
	}
	return setValue(r, s.signatureRef(), s.formatSignature(s.Signature.Prefix+s.Encoding.encode(signed), c.timestamp))
}

// signatureRef returns the place where a sender writes the signature.
func (s *Scheme) signatureRef() Ref {
	ref := s.Signature.In[0]
	if stem, ok := strings.CutSuffix(ref.Name, "#"); ok && ref.Kind == Header {
		ref.Name = stem + "1"
	}
	return ref
}

func (s *Scheme) sign(secret []byte, v *values) ([]byte, error) {
	if !s.IsAsymmetric() {
		k := parseKey(s, secret)
		if k.err != nil {
			return nil, k.err
		}
		return s.expectedSignature(k, v, &s.Message)
	}
	private, err := s.privateKey(secret)
	if err != nil {
		return nil, err
	}
	message, err := s.signedBytes(v, &s.Message)
	if err != nil {
		return nil, err
	}
	if s.Method == Ed25519 {
		return private.Sign(rand.Reader, message, crypto.Hash(0))
	}
	return private.Sign(rand.Reader, s.Digest.sum(message), s.Digest.crypto())
}

// formatSignature formats a signature for its place, together with the time if the scheme writes
// both there.
func (s *Scheme) formatSignature(signature, timestamp string) string {
	l := s.Signature
	if l.Separator == "" {
		return signature
	}
	keyedItem := func(name, value string) string {
		if l.KeySeparator == "" {
			return value
		}
		return name + l.KeySeparator + value
	}
	var items []string
	if s.Timestamp != nil && s.Timestamp.From.Kind == Item {
		items = append(items, keyedItem(s.Timestamp.From.Name, timestamp))
	}
	return strings.Join(append(items, keyedItem(l.Item, signature)), l.Separator)
}

// setValue writes a value to its place in a request.
func setValue(r *Request, ref Ref, value string) error {
	switch ref.Kind {
	case Header:
		r.Header.Set(ref.Name, value)
		return nil
	case JSON:
		return setJSON(r, strings.Split(ref.Name, "."), value)
	case Form:
		form, err := url.ParseQuery(string(r.Body))
		if err != nil {
			return fmt.Errorf("the body is not a form: %w", err)
		}
		form.Set(ref.Name, value)
		r.Body = []byte(form.Encode())
		return nil
	case Query:
		u, err := url.Parse(r.URL)
		if err != nil {
			return err
		}
		query := u.Query()
		query.Set(ref.Name, value)
		u.RawQuery = query.Encode()
		r.URL = u.String()
		return nil
	}
	return fmt.Errorf("no value can be written to %s", ref)
}

func setJSON(r *Request, path []string, value string) error {
	d := json.NewDecoder(bytes.NewReader(r.Body))
	d.UseNumber()
	var root map[string]any
	if err := d.Decode(&root); err != nil {
		return fmt.Errorf("the body must be a JSON object: %w", err)
	}
	if root == nil {
		return errors.New("the body must be a JSON object, not null")
	}
	at := root
	for _, name := range path[:len(path)-1] {
		next, ok := at[name].(map[string]any)
		if !ok {
			next = map[string]any{}
			at[name] = next
		}
		at = next
	}
	last := path[len(path)-1]
	if _, ok := at[last].(json.Number); ok {
		at[last] = json.Number(value)
	} else {
		at[last] = value
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(root); err != nil {
		return err
	}
	r.Body = bytes.TrimSpace(out.Bytes())
	return nil
}
