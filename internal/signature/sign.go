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

// Sign signs a request as the sender would at the given time: it sets the time and the signature where the scheme has them. Where
// they stand in a JSON body or a form, that is written anew.
func (s *Scheme) Sign(secret []byte, r *Request, at time.Time) error {
	if r.Header == nil {
		r.Header = http.Header{}
	}
	if s.When != nil && s.When.Is != "" {
		if err := set(r, s.When.From, s.When.Is); err != nil {
			return err
		}
	}
	c := &claim{}
	if s.Timestamp != nil {
		c.timestamp = s.Timestamp.Unit.write(at)
		if s.Timestamp.From.Kind != Item {
			if err := set(r, s.Timestamp.From, c.timestamp); err != nil {
				return err
			}
		}
	}
	if s.Body != nil {
		if err := set(r, s.Body.From, s.Body.Encoding.encode(s.Body.Digest.of(r.Body))); err != nil {
			return err
		}
	}
	signed, err := s.sign(secret, &values{r: r, claim: c, secret: secret})
	if err != nil {
		return err
	}
	return set(r, s.place(), s.layOut(s.Signature.Prefix+s.Encoding.encode(signed), c.timestamp))
}

// place is where a sender writes the signature.
func (s *Scheme) place() Ref {
	ref := s.Signature.In[0]
	if stem, ok := strings.CutSuffix(ref.Name, "#"); ok && ref.Kind == Header {
		ref.Name = stem + "1"
	}
	return ref
}

func (s *Scheme) sign(secret []byte, v *values) ([]byte, error) {
	if !s.Asymmetric() {
		k := newKeyed(s, secret)
		if k.err != nil {
			return nil, k.err
		}
		return s.sum(k, v, &s.Message)
	}
	private, err := s.privateKey(secret)
	if err != nil {
		return nil, err
	}
	message, err := s.bytes(v, &s.Message)
	if err != nil {
		return nil, err
	}
	if s.Method == Ed25519 {
		return private.Sign(rand.Reader, message, crypto.Hash(0))
	}
	return private.Sign(rand.Reader, s.Digest.of(message), s.Digest.crypto())
}

// layOut writes a signature, and the time where it stands beside it, as the scheme's place has them.
func (s *Scheme) layOut(signature, timestamp string) string {
	l := s.Signature
	if l.Separator == "" {
		return signature
	}
	key := func(name, value string) string {
		if l.Assign == "" {
			return value
		}
		return name + l.Assign + value
	}
	var items []string
	if s.Timestamp != nil && s.Timestamp.From.Kind == Item {
		items = append(items, key(s.Timestamp.From.Name, timestamp))
	}
	return strings.Join(append(items, key(l.Item, signature)), l.Separator)
}

// set writes a value to its place in a request.
func set(r *Request, ref Ref, value string) error {
	switch ref.Kind {
	case Header:
		r.Header.Set(ref.Name, value)
		return nil
	case JSON:
		return setJSON(r, strings.Split(ref.Name, "."), value)
	case Form:
		form, err := url.ParseQuery(string(r.Body))
		if err != nil {
			return fmt.Errorf("the body is no form: %w", err)
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
	return fmt.Errorf("nothing can be written to %s", ref)
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
