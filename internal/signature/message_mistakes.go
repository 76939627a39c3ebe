package signature

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxHeaderGuesses is the maximum number of headers that are tried as an id, and as a time.
const maxHeaderGuesses = 4

// findMessageMistake tries common messages of senders, and describes the one that matches a
// signature. Explain uses it if findMistakes finds nothing.
func (s *Scheme) findMessageMistake(secrets [][]byte, r Request) []string {
	if s.Method == Token {
		return nil
	}
	for _, text := range s.commonMessages(&r) {
		message, err := ParseTemplate(text)
		if err != nil || text == s.Message.String() {
			continue
		}
		other := *s
		other.Message, other.Or, other.Body = message, nil, nil
		if other.verifies(secrets, &r) {
			return []string{"with " + message.escaped() + " as the signed message, instead of " + s.Message.escaped()}
		}
	}
	return nil
}

// commonMessages are the messages that senders usually sign, with the times and ids of a request.
func (s *Scheme) commonMessages(r *Request) []string {
	if s.Method == Hash {
		return []string{"{secret}{body}", "{body}{secret}", "{secret}.{body}", "{body}.{secret}"}
	}
	out := []string{"{body}"}
	ids := headerRefs(r, func(name, _ string) bool { return strings.HasSuffix(name, "-Id") })
	for _, at := range s.commonTimes(r) {
		out = append(out, at+"{body}", at+".{body}", at+":{body}", "v0:"+at+":{body}", "{body}"+at, "{body}."+at)
		for _, id := range ids {
			out = append(out, id+"."+at+".{body}")
		}
	}
	return out
}

// commonTimes are references to possible signed times.
func (s *Scheme) commonTimes(r *Request) []string {
	var out []string
	if s.Timestamp != nil {
		out = append(out, "{timestamp}")
	} else if s.Signature.KeySeparator != "" {
		out = append(out, "{item:t}", "{item:ts}", "{item:timestamp}")
	}
	return append(out, headerRefs(r, func(_, value string) bool { return mayBeTime(value) })...)
}

// headerRefs returns references to the first headers that match, in the order of their names.
func headerRefs(r *Request, matches func(name, value string) bool) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		if values := r.Header[name]; len(out) < maxHeaderGuesses && len(values) == 1 && matches(name, values[0]) {
			out = append(out, "{header:"+name+"}")
		}
	}
	return out
}

// mayBeTime reports whether a text may be seconds or milliseconds since 1970, or RFC 3339.
func mayBeTime(text string) bool {
	if _, err := strconv.ParseUint(text, 10, 64); err == nil {
		return len(text) == 10 || len(text) == 13
	}
	_, err := time.Parse(time.RFC3339, text)
	return err == nil
}
