package signature_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/signature"
)

var (
	dated = signature.Scheme{
		Name: "dated", Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Dated")},
			Separator: ",", KeySeparator: "=", Item: "v1"},
		Timestamp: &signature.Clock{From: signature.MustRef("item:t")},
		Message:   signature.MustTemplate("{timestamp}.{body}"),
	}
	bare = signature.Scheme{
		Name: "bare", Encoding: signature.Base64,
		Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Bare")}},
		Message:   signature.MustTemplate("{body}"),
	}
)

// Vectors that were made with the openssl command.
const (
	body      = `{"id":"evt_1"}`
	datedSum  = "c89214b5b5da833daed6f0b8c5bb6bd58cea9022bd80ccc78230f3942d632925"
	datedKey  = "whsec_test"
	bareSum   = "63DZ3HlbW3VQ5bJrI5Y1s1KU32pOJnNPShO1/ENl5Kw="
	bareKey   = "shpss_test"
	signedAt  = 1_700_000_000
	tolerance = 5 * time.Minute
)

func request(header, value string) signature.Request {
	return signature.Request{Header: http.Header{header: {value}}, Body: []byte(body),
		ReceivedAt: time.Unix(signedAt, 0)}
}

// sign returns the value of a scheme's header for a body.
func sign(t *testing.T, s *signature.Scheme, key, body string, at time.Time) string {
	t.Helper()
	r := signature.Request{Body: []byte(body)}
	must(t, s.Sign([]byte(key), &r, at))
	return r.Header.Get(s.Signature.In[0].Name)
}

func TestVerify_headerWithTime(t *testing.T) {
	t.Parallel()
	const right = "v1=" + datedSum
	tests := map[string]struct {
		header string
		want   signature.Problem
	}{
		"right":                      {"t=1700000000," + right, 0},
		"time last":                  {right + ",t=1700000000", 0},
		"upper case":                 {"t=1700000000,v1=" + strings.ToUpper(datedSum), 0},
		"right among wrong":          {"t=1700000000,v1=00,v1=" + strings.Repeat("ab", 32) + "," + right, 0},
		"other schemes are ignored":  {"t=1700000000,v0=junk==,x=," + right, 0},
		"unreadable one is ignored":  {"t=1700000000,v1=nothex," + right, 0},
		"only another scheme":        {"t=1700000000,v0=" + datedSum, signature.Malformed},
		"only unreadable ones":       {"t=1700000000,v1=nothex", signature.Malformed},
		"no time":                    {right, signature.Malformed},
		"two times":                  {"t=1700000000,t=1700000000," + right, signature.Malformed},
		"time with sign":             {"t=+1700000000," + right, signature.Malformed},
		"time with zeros":            {"t=01700000000," + right, signature.Malformed},
		"negative time":              {"t=-1," + right, signature.Malformed},
		"huge time":                  {"t=99999999999999999999," + right, signature.Malformed},
		"far time":                   {"t=1099511627776," + right, signature.Malformed},
		"empty time":                 {"t=," + right, signature.Malformed},
		"spaces":                     {"t=1700000000, " + right, signature.Malformed},
		"no pairs":                   {"hello", signature.Malformed},
		"trailing comma":             {"t=1700000000," + right + ",", signature.Malformed},
		"empty":                      {"", signature.Missing},
		"cut signature":              {"t=1700000000,v1=" + datedSum[:62], signature.Wrong},
		"empty signature":            {"t=1700000000,v1=", signature.Wrong},
		"another time than signed":   {"t=1700000001," + right, signature.Wrong},
		"as many signatures as read": {"t=1700000000," + strings.Repeat("v1=00,", 99) + right, 0},
		"more signatures than read":  {"t=1700000000," + strings.Repeat("v1=00,", 100) + right, signature.Malformed},
		"more items than read":       {"t=1700000000," + strings.Repeat("v0=00,", 400) + right, signature.Malformed},
		"longer than a header may be": {"t=1700000000," + right + ",x=" + strings.Repeat("y", 8<<10),
			signature.Malformed},
	}
	for name, test := range tests {
		_, err := dated.Verify([][]byte{[]byte(datedKey)}, request("X-Dated", test.header), tolerance)
		if problem(err) != test.want {
			t.Errorf("%s: %v, want problem %d", name, err, test.want)
		}
	}
}

func TestVerify_headerWithoutTime(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		header string
		want   signature.Problem
	}{
		"right":            {bareSum, 0},
		"no padding":       {strings.TrimRight(bareSum, "="), signature.Malformed},
		"spare bits":       {strings.Replace(bareSum, "w=", "x=", 1), signature.Malformed},
		"URL alphabet":     {strings.Replace(bareSum, "/", "_", 1), signature.Malformed},
		"line feed inside": {bareSum[:8] + "\n" + bareSum[8:], signature.Malformed},
		"two of them":      {bareSum + "," + bareSum, signature.Malformed},
		"too short":        {"AAAA", signature.Malformed},
		"another":          {"A" + bareSum[1:], signature.Wrong},
		"empty":            {"", signature.Missing},
	} {
		_, err := bare.Verify([][]byte{[]byte(bareKey)}, request("X-Bare", test.header), tolerance)
		if problem(err) != test.want {
			t.Errorf("%s: %v, want problem %d", name, err, test.want)
		}
	}
}

func TestVerify_severalSecrets_anyMatches(t *testing.T) {
	t.Parallel()
	r := request("X-Dated", "t=1700000000,v1="+datedSum)
	m, err := dated.Verify([][]byte{[]byte("a"), {}, []byte(datedKey)}, r, tolerance)
	if err != nil || m.Secret != 2 || m.SignedAt.Unix() != signedAt {
		t.Errorf("verify: %+v, %v; want the third secret", m, err)
	}
	if _, err := dated.Verify(nil, r, tolerance); problem(err) != signature.Wrong {
		t.Errorf("verify without secrets: %v", err)
	}
}

// Cached secrets stay separate: each verifies its own signatures and no others, in any order.
func TestKeys_severalSecrets_stayApart(t *testing.T) {
	t.Parallel()
	r := request("X-Dated", "t=1700000000,v1="+datedSum)
	r.Keys = new(signature.Keys)
	another, right := []byte("another"), []byte(datedKey)
	for range 2 {
		if _, err := dated.Verify([][]byte{another}, r, tolerance); problem(err) != signature.Wrong {
			t.Errorf("another secret: %v", err)
		}
		if m, err := dated.Verify([][]byte{another, right}, r, tolerance); err != nil || m.Secret != 1 {
			t.Errorf("both secrets: %+v, %v", m, err)
		}
	}
}

// Everyone can sign with an empty key, which is what a prefix alone is.
func TestVerify_invalidSecret_matchesNothing(t *testing.T) {
	t.Parallel()
	prefixed := bare
	prefixed.Key.Strip = []string{"whsec_"}
	mac := hmac.New(sha256.New, nil)
	mac.Write([]byte(body))
	r := request("X-Bare", base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	if _, err := prefixed.Verify([][]byte{[]byte("whsec_")}, r, tolerance); problem(err) != signature.Wrong {
		t.Errorf("verify: %v", err)
	}
	if err := prefixed.CheckSecret([]byte("whsec_")); err == nil {
		t.Error("a prefix alone is taken for a secret")
	}
}

func TestVerify_errors_containNoCorrectSignature(t *testing.T) {
	t.Parallel()
	r := request("X-Dated", "t=1700000000,v1=00")
	_, err := dated.Verify([][]byte{[]byte(datedKey)}, r, tolerance)
	if err == nil || strings.Contains(err.Error(), datedSum[:8]) || strings.Contains(err.Error(), datedKey) {
		t.Errorf("error %v", err)
	}
}

// The tolerance of a source overrides the scheme's, whether it is longer or shorter.
func TestVerify_tolerance_sourceOverridesScheme(t *testing.T) {
	t.Parallel()
	minute := dated
	minute.Timestamp = &signature.Clock{From: signature.MustRef("item:t"), Tolerance: time.Minute}
	for given, counts := range map[time.Duration]time.Duration{0: time.Minute, time.Second: time.Second,
		time.Hour: time.Hour} {
		for _, age := range []time.Duration{counts, counts + 1} {
			r := request("X-Dated", "t=1700000000,v1="+datedSum)
			r.ReceivedAt = time.Unix(signedAt, 0).Add(age)
			_, err := minute.Verify([][]byte{[]byte(datedKey)}, r, given)
			if want := map[bool]signature.Problem{true: signature.Stale}[age > counts]; problem(err) != want {
				t.Errorf("tolerance %s, age %s: %v, want problem %d", given, age, err, want)
			}
		}
	}
}

// Times whose difference overflows are still stale or in the future.
func TestVerify_distantTimes_areRejected(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[int64]signature.Problem{0: signature.Stale, 11_000_000_000: signature.Future,
		1<<40 - 1: signature.Future} {
		at := time.Unix(seconds, 0)
		r := request("X-Dated", sign(t, &dated, datedKey, body, at))
		if _, err := dated.Verify([][]byte{[]byte(datedKey)}, r, tolerance); problem(err) != want {
			t.Errorf("signed at %s: %v, want problem %d", at.UTC(), err, want)
		}
	}
}

// An invalid scheme is rejected, and the error says what is wrong.
func TestSchemeCheck_invalidSchemes_fail(t *testing.T) {
	t.Parallel()
	bodyOnly := text("{body}")
	tests := map[string]struct {
		change func(s *signature.Scheme)
		want   string
	}{
		"no name":            {func(s *signature.Scheme) { s.Name = "" }, "name: is not set"},
		"no place":           {func(s *signature.Scheme) { s.Signature.In = nil }, "header: is not set"},
		"a place in the URL": {func(s *signature.Scheme) { s.Signature.In = in("url") }, "\"url\" is not a reference"},
		"the body as a place": {func(s *signature.Scheme) { s.Signature.In = in("body") },
			"\"body\" is not a reference"},
		"no message": {func(s *signature.Scheme) { s.Message = signature.Template{} },
			"contains nothing that differs"},
		"only a literal": {func(s *signature.Scheme) { s.Message = text("x") }, "contains nothing that differs"},
		"only the method": {func(s *signature.Scheme) { s.Message = text("{method}") },
			"contains nothing that differs"},
		"hash of the secret": {func(s *signature.Scheme) { s.Method, s.Message = signature.Hash, text("{secret}") },
			"contains nothing that differs"},
		"a bad alternative": {func(s *signature.Scheme) { s.Or = []signature.Template{text("x")} },
			"contains nothing that differs"},
		"names of events": {func(s *signature.Scheme) { s.Message = text("{type}{body}") },
			"{type} is not allowed here"},
		"HMAC of the secret": {func(s *signature.Scheme) { s.Message = text("{secret}{body}") },
			"{secret} is allowed, and required"},
		"hash without it": {func(s *signature.Scheme) { s.Method = signature.Hash },
			"{secret} is allowed, and required"},
		"item without items": {func(s *signature.Scheme) { s.Message = text("{item:t}{body}") },
			"separator: is not set, and message contains"},
		"time without a clock": {func(s *signature.Scheme) { s.Message = text("{timestamp}{body}") },
			"timestamp: is not set"},
		"unsigned time": {func(s *signature.Scheme) { s.Timestamp = at("header:X-T", signature.Seconds) },
			"timestamp.from: this time is not signed"},
		"unsigned item": {func(s *signature.Scheme) {
			s.Signature = pairs("X-A", "v1")
			s.Timestamp = at("item:t", signature.Seconds)
		}, "timestamp.from: this time is not signed"},
		"time signed in one of two": {func(s *signature.Scheme) {
			s.Timestamp, s.Message, s.Or = at("header:X-T", signature.Seconds), text("{timestamp}{body}"),
				[]signature.Template{bodyOnly}
		}, "is not signed"},
		"time in an unsigned body": {func(s *signature.Scheme) {
			s.Timestamp, s.Message = at("json:t", signature.Seconds), text("{url}")
		}, "is not signed"},
		"time in another item": {func(s *signature.Scheme) { s.Timestamp = at("item:t", signature.Seconds) },
			"is another item of the signature's header"},
		"time in the method": {func(s *signature.Scheme) { s.Timestamp = at("method", signature.Seconds) },
			"timestamp.from: \"method\" is not a reference"},
		"negative tolerance": {func(s *signature.Scheme) {
			s.Timestamp = at("json:t", signature.Seconds)
			s.Timestamp.Tolerance = -time.Second
		}, "negative"},
		"unsigned digest of the body": {func(s *signature.Scheme) {
			s.Body = &signature.BodyDigest{From: signature.MustRef("header:Digest")}
		}, "is not signed"},
		"signature that covers itself in JSON": {func(s *signature.Scheme) { s.Signature.In = in("json:sig") },
			"the signature itself"},
		"signature that covers itself in a form": {func(s *signature.Scheme) {
			s.Signature.In, s.Message = in("form:sig"), text("{sorted_form}")
		}, "the signature itself"},
		"signature that covers itself in a URL": {func(s *signature.Scheme) {
			s.Signature.In, s.Message = in("query:sig"), text("{url}{body}")
		}, "the signature itself"},
		"plain HMAC": {func(s *signature.Scheme) { s.Encoding = signature.Plain },
			"plain is for tokens only"},
		"token with a message": {func(s *signature.Scheme) { s.Method = signature.Token },
			"a token has no signed message"},
		"keys without a separator": {func(s *signature.Scheme) { s.Signature.KeySeparator = "=" },
			"separator: is not set"},
		"skip without a separator": {func(s *signature.Scheme) { s.Signature.Skip = 1 },
			"separator: is not set"},
		"item without assign": {func(s *signature.Scheme) {
			s.Signature.Separator, s.Signature.Item = ",", "v1"
		}, "assign: is not set"},
		"keys and places": {func(s *signature.Scheme) {
			s.Signature = pairs("X", "v1")
			s.Signature.Skip = 1
		}, "skip: counts items without keys"},
		"condition on the body": {func(s *signature.Scheme) {
			s.When = &signature.Condition{From: signature.MustRef("body")}
		}, "when.from: \"body\" is not a reference"},
		"prefixed without a prefix": {func(s *signature.Scheme) { s.Key.RequirePrefix = true },
			"no prefix is set"},
		"another method": {func(s *signature.Scheme) { s.Method = "md5" },
			"is not a known value"},
		"another digest": {func(s *signature.Scheme) { s.Digest = "md5" },
			"is not a known value"},
		"another encoding": {func(s *signature.Scheme) { s.Encoding = "hex2" },
			"is not a known value"},
		"another key form": {func(s *signature.Scheme) { s.Key.Form = "rot13" },
			"is not a known value"},
		"another unit": {func(s *signature.Scheme) { s.Timestamp = at("json:t", "us") },
			"is not a known value"},
		"another body digest": {func(s *signature.Scheme) {
			s.Body = &signature.BodyDigest{From: signature.MustRef("query:d"), Digest: "md5"}
		}, "is not a known value"},
	}
	for name, test := range tests {
		s := signature.Scheme{Name: "test", Signature: signature.Layout{In: in("header:X-A")}, Message: bodyOnly}
		must(t, check(&s))
		test.change(&s)
		if err := check(&s); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v; want %q", name, err, test.want)
		}
	}
}

// extend continues a hash from a digest of size bytes. It returns the padding and the digest of the
// hashed bytes, the padding and more. It needs no other knowledge of the hashed bytes.
func extend(t *testing.T, digest []byte, size int, more string) (padding, longer []byte) {
	t.Helper()
	padding = append([]byte{0x80}, make([]byte, (119-size%64)%64)...)
	padding = binary.BigEndian.AppendUint64(padding, uint64(size)*8)
	h := sha256.New()
	state := append([]byte("sha\x03"), digest...)
	state = append(state, make([]byte, sha256.BlockSize)...)
	state = binary.BigEndian.AppendUint64(state, uint64(size+len(padding)))
	must(t, h.(encoding.BinaryUnmarshaler).UnmarshalBinary(state))
	h.Write([]byte(more))
	return padding, h.Sum(nil)
}

func TestIsExtendable_extendedBody_verifies(t *testing.T) {
	t.Parallel()
	const secret, body, more = "sixteen bytes of", "amount=1&to=shop", "&to=thief"
	for message, extendable := range map[string]bool{
		"{secret}{body}":         true,
		"{secret}:{body}":        true,
		"{body}{secret}":         false,
		"{secret}{body}{secret}": false,
	} {
		s := &signature.Scheme{Name: "hash", Method: signature.Hash, Signature: signature.Layout{In: in("header:X-S")},
			Message: text(message)}
		if got := s.IsExtendable(); got != extendable {
			t.Errorf("%s: extendable is %t", message, got)
		}
		r := signature.Request{Header: http.Header{}, Body: []byte(body)}
		must(t, s.Sign([]byte(secret), &r, r.ReceivedAt))
		digest, err := hex.DecodeString(r.Header.Get("X-S"))
		must(t, err)
		accepted := false
		// the attacker does not know the secret's length
		for size := len(body); size < len(body)+2*len(secret)+8; size++ {
			padding, longer := extend(t, digest, size, more)
			forged := signature.Request{Header: http.Header{"X-S": {hex.EncodeToString(longer)}},
				Body: append([]byte(body+string(padding)), more...)}
			if _, err := s.Verify([][]byte{[]byte(secret)}, forged, 0); err == nil {
				accepted = true
			}
		}
		if accepted != extendable {
			t.Errorf("%s: an extended body is accepted: %t, want %t", message, accepted, extendable)
		}
	}
	or := &signature.Scheme{Method: signature.Hash, Message: text("{body}{secret}"),
		Or: []signature.Template{text("{secret}{body}")}}
	if !or.IsExtendable() {
		t.Error("another spelling of the message is skipped")
	}
}
