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
		Name: "dated", Signature: pairs("X-Dated", "v1"),
		Timestamp: &signature.Clock{From: signature.MustRef("item:t")}, Message: text("{timestamp}.{body}"),
	}
	bare = signature.Scheme{
		Name: "bare", Encoding: signature.Base64, Signature: header("X-Bare"), Message: text("{body}"),
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

// value is a value of the signature's header, with the expected result.
type value struct {
	header string
	want   signature.Problem
}

func wantProblems(t *testing.T, s *signature.Scheme, key string, values map[string]value) {
	t.Helper()
	for name, v := range values {
		_, err := s.Verify([][]byte{[]byte(key)}, request(s.Signature.In[0].Name, v.header), tolerance)
		if problem(err) != v.want {
			t.Errorf("%s: %v, want problem %d", name, err, v.want)
		}
	}
}

func TestVerify_headerWithTime(t *testing.T) {
	t.Parallel()
	const right = "v1=" + datedSum
	wantProblems(t, &dated, datedKey, map[string]value{
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
	})
}

func TestVerify_headerWithoutTime(t *testing.T) {
	t.Parallel()
	wantProblems(t, &bare, bareKey, map[string]value{
		"right":            {bareSum, 0},
		"no padding":       {strings.TrimRight(bareSum, "="), signature.Malformed},
		"spare bits":       {strings.Replace(bareSum, "w=", "x=", 1), signature.Malformed},
		"URL alphabet":     {strings.Replace(bareSum, "/", "_", 1), signature.Malformed},
		"line feed inside": {bareSum[:8] + "\n" + bareSum[8:], signature.Malformed},
		"two of them":      {bareSum + "," + bareSum, signature.Malformed},
		"too short":        {"AAAA", signature.Malformed},
		"another":          {"A" + bareSum[1:], signature.Wrong},
		"empty":            {"", signature.Missing},
	})
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
	type scheme = *signature.Scheme
	const (
		nothingDiffers = "contains nothing that differs"
		secretAllowed  = "{secret} is allowed, and required"
		unsignedTime   = "timestamp.from: this time is not signed"
		coversItself   = "the signature itself"
		noSeparator    = "separator: is not set"
		unknown        = "is not a known value"
	)
	bodyOnly := text("{body}")
	tests := map[string]struct {
		change func(s scheme)
		want   string
	}{
		"no name":             {func(s scheme) { s.Name = "" }, "name: is not set"},
		"no place":            {func(s scheme) { s.Signature.In = nil }, "header: is not set"},
		"a place in the URL":  {func(s scheme) { s.Signature.In = in("url") }, `"url" is not a reference`},
		"the body as a place": {func(s scheme) { s.Signature.In = in("body") }, `"body" is not a reference`},
		"no message":          {func(s scheme) { s.Message = signature.Template{} }, nothingDiffers},
		"only a literal":      {func(s scheme) { s.Message = text("x") }, nothingDiffers},
		"only the method":     {func(s scheme) { s.Message = text("{method}") }, nothingDiffers},
		"hash of the secret": {func(s scheme) {
			s.Method, s.Message = signature.Hash, text("{secret}")
		}, nothingDiffers},
		"a bad alternative":  {func(s scheme) { s.Or = []signature.Template{text("x")} }, nothingDiffers},
		"names of events":    {func(s scheme) { s.Message = text("{type}{body}") }, "{type} is not allowed here"},
		"HMAC of the secret": {func(s scheme) { s.Message = text("{secret}{body}") }, secretAllowed},
		"hash without it":    {func(s scheme) { s.Method = signature.Hash }, secretAllowed},
		"item without items": {func(s scheme) { s.Message = text("{item:t}{body}") },
			"separator: is not set, and message contains"},
		"time without a clock": {func(s scheme) { s.Message = text("{timestamp}{body}") }, "timestamp: is not set"},
		"unsigned time":        {func(s scheme) { s.Timestamp = at("header:X-T", signature.Seconds) }, unsignedTime},
		"unsigned item": {func(s scheme) {
			s.Signature, s.Timestamp = pairs("X-A", "v1"), at("item:t", signature.Seconds)
		}, unsignedTime},
		"time signed in one of two": {func(s scheme) {
			s.Timestamp, s.Message, s.Or = at("header:X-T", signature.Seconds), text("{timestamp}{body}"),
				[]signature.Template{bodyOnly}
		}, unsignedTime},
		"time in an unsigned body": {func(s scheme) {
			s.Timestamp, s.Message = at("json:t", signature.Seconds), text("{url}")
		}, unsignedTime},
		"time in another item": {func(s scheme) { s.Timestamp = at("item:t", signature.Seconds) },
			"is another item of the signature's header"},
		"time in the method": {func(s scheme) { s.Timestamp = at("method", signature.Seconds) },
			`timestamp.from: "method" is not a reference`},
		"negative tolerance": {func(s scheme) {
			s.Timestamp = at("json:t", signature.Seconds)
			s.Timestamp.Tolerance = -time.Second
		}, "negative"},
		"unsigned digest of the body": {func(s scheme) {
			s.Body = &signature.BodyDigest{From: signature.MustRef("header:Digest")}
		}, "is not signed"},
		"signature that covers itself in JSON": {func(s scheme) { s.Signature.In = in("json:sig") }, coversItself},
		"signature that covers itself in a form": {func(s scheme) {
			s.Signature.In, s.Message = in("form:sig"), text("{sorted_form}")
		}, coversItself},
		"signature that covers itself in a URL": {func(s scheme) {
			s.Signature.In, s.Message = in("query:sig"), text("{url}{body}")
		}, coversItself},
		"plain HMAC":               {func(s scheme) { s.Encoding = signature.Plain }, "plain is for tokens only"},
		"token with a message":     {func(s scheme) { s.Method = signature.Token }, "a token has no signed message"},
		"keys without a separator": {func(s scheme) { s.Signature.KeySeparator = "=" }, noSeparator},
		"skip without a separator": {func(s scheme) { s.Signature.Skip = 1 }, noSeparator},
		"item without assign": {func(s scheme) { s.Signature.Separator, s.Signature.Item = ",", "v1" },
			"assign: is not set"},
		"keys and places": {func(s scheme) {
			s.Signature = pairs("X", "v1")
			s.Signature.Skip = 1
		}, "skip: counts items without keys"},
		"condition on the body": {func(s scheme) { s.When = &signature.Condition{From: signature.MustRef("body")} },
			`when.from: "body" is not a reference`},
		"prefixed without a prefix": {func(s scheme) { s.Key.RequirePrefix = true }, "no prefix is set"},
		"another method":            {func(s scheme) { s.Method = "md5" }, unknown},
		"another digest":            {func(s scheme) { s.Digest = "md5" }, unknown},
		"another encoding":          {func(s scheme) { s.Encoding = "hex2" }, unknown},
		"another key form":          {func(s scheme) { s.Key.Form = "rot13" }, unknown},
		"another unit":              {func(s scheme) { s.Timestamp = at("json:t", "us") }, unknown},
		"another body digest": {func(s scheme) {
			s.Body = &signature.BodyDigest{From: signature.MustRef("query:d"), Digest: "md5"}
		}, unknown},
	}
	for name, test := range tests {
		s := signature.Scheme{Name: "test", Signature: header("X-A"), Message: bodyOnly}
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
		s := &signature.Scheme{Name: "hash", Method: signature.Hash, Signature: header("X-S"), Message: text(message)}
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
