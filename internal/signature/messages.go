package signature

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxGuesses is the most headers that are tried as an id, and as a time.
const maxGuesses = 4

// messageMistake tries what senders usually sign, and says which of it explains a signature. It is tried where nothing smaller does.
func (s *Scheme) messageMistake(secrets [][]byte, r Request) []string {
	if s.Method == Token {
		return nil
	}
	for _, text := range s.usualMessages(&r) {
		message, err := ParseTemplate(text)
		if err != nil || text == s.Message.String() {
			continue
		}
		other := *s
		other.Message, other.Or, other.Body = message, nil, nil
		if other.matches(secrets, &r) {
			return []string{"with " + message.shown() + " as what is signed, in place of " + s.Message.shown()}
		}
	}
	return nil
}

// usualMessages are what senders usually sign, with the times and ids that a request has.
func (s *Scheme) usualMessages(r *Request) []string {
	if s.Method == Hash {
		return []string{"{secret}{body}", "{body}{secret}", "{secret}.{body}", "{body}.{secret}"}
	}
	out := []string{"{body}"}
	ids := headersLike(r, func(name, _ string) bool { return strings.HasSuffix(name, "-Id") })
	for _, at := range s.usualTimes(r) {
		out = append(out, at+"{body}", at+".{body}", at+":{body}", "v0:"+at+":{body}", "{body}"+at, "{body}."+at)
		for _, id := range ids {
			out = append(out, id+"."+at+".{body}")
		}
	}
	return out
}

// usualTimes are references to what may be the signed time.
func (s *Scheme) usualTimes(r *Request) []string {
	var out []string
	if s.Timestamp != nil {
		out = append(out, "{timestamp}")
	} else if s.Signature.Assign != "" {
		out = append(out, "{item:t}", "{item:ts}", "{item:timestamp}")
	}
	return append(out, headersLike(r, func(_, value string) bool { return looksLikeTime(value) })...)
}

// headersLike are references to the first headers of a kind, by their names' order.
func headersLike(r *Request, is func(name, value string) bool) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		if values := r.Header[name]; len(out) < maxGuesses && len(values) == 1 && is(name, values[0]) {
			out = append(out, "{header:"+name+"}")
		}
	}
	return out
}

// looksLikeTime: seconds or milliseconds since 1970, or RFC 3339.
func looksLikeTime(text string) bool {
	if _, err := strconv.ParseUint(text, 10, 64); err == nil {
		return len(text) == 10 || len(text) == 13
	}
	_, err := time.Parse(time.RFC3339, text)
	return err == nil
}
