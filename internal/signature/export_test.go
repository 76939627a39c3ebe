package signature

import "encoding/json"

// FindJSON is findJSON for any body. It finds nothing in invalid JSON.
func FindJSON(body []byte, path string) (string, bool) {
	if !json.Valid(body) {
		return "", false
	}
	text, ok := findJSON(body, path)
	return string(text), ok
}

// FindMember is findMember for a valid JSON text, which may begin with white space.
func FindMember(body []byte, name string) (text []byte, ok bool) {
	at := findMember(body[skipSpace(body, 0):], name)
	return at, at != nil
}

// KeyOf returns the bytes of a secret's key.
func (k Key) KeyOf(secret []byte) ([]byte, error) { return k.toBytes(secret) }
