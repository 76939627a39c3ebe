package signature

import "encoding/json"

// FindJSON is findJSON for any body; it finds nothing in what is no JSON.
func FindJSON(body []byte, path string) (string, bool) {
	if !json.Valid(body) {
		return "", false
	}
	text, ok := findJSON(body, path)
	return string(text), ok
}

// FindMember is the member or element under a name of the container that is all of a JSON text.
func FindMember(body []byte, name string) (text []byte, ok bool) {
	at := member(body[skipSpace(body, 0):], name)
	return at, at != nil
}

// KeyOf are the bytes of the key that a secret stands for.
func (k Key) KeyOf(secret []byte) ([]byte, error) { return k.of(secret) }
