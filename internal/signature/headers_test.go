package signature_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/signature"
)

var (
	dated = signature.Scheme{
		Name: "dated", Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Dated")}, Separator: ",", Assign: "=", Item: "v1"},
		Timestamp: &signature.Clock{From: signature.MustRef("item:t")}, Message: signature.MustTemplate("{timestamp}.{body}"),
	}
	bare = signature.Scheme{
		Name: "bare", Encoding: signature.Base64, Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Bare")}},
		Message: signature.MustTemplate("{body}"),
	}
)

// Vectors made with the openssl command.
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
	return signature.Request{Header: http.Header{header: {value}}, Body: []byte(body), ReceivedAt: time.Unix(signedAt, 0)}
}

// sign is the value of a scheme's header for a body.
func sign(t *testing.T, s *signature.Scheme, key, body string, at time.Time) string {
	t.Helper()
	r := signature.Request{Body: []byte(body)}
	if err := s.Sign([]byte(key), &r, at); err != nil {
		t.Fatal(err)
	}
	return r.Header.Get(s.Signature.In[0].Name)
}

func TestDatedHeaders(t *testing.T) {
	t.Parallel()
	const right = "v1=" + datedSum
	tests := map[string]struct {
		header string
		want   signature.Problem
	}{
		"right":                       {"t=1700000000," + right, 0},
		"time last":                   {right + ",t=1700000000", 0},
		"upper case":                  {"t=1700000000,v1=" + strings.ToUpper(datedSum), 0},
		"right among wrong":           {"t=1700000000,v1=00,v1=" + strings.Repeat("ab", 32) + "," + right, 0},
		"other schemes passed over":   {"t=1700000000,v0=junk==,x=," + right, 0},
		"unreadable one passed over":  {"t=1700000000,v1=nothex," + right, 0},
		"only another scheme":         {"t=1700000000,v0=" + datedSum, signature.Malformed},
		"only unreadable ones":        {"t=1700000000,v1=nothex", signature.Malformed},
		"no time":                     {right, signature.Malformed},
		"two times":                   {"t=1700000000,t=1700000000," + right, signature.Malformed},
		"time with sign":              {"t=+1700000000," + right, signature.Malformed},
		"time with zeros":             {"t=01700000000," + right, signature.Malformed},
		"negative time":               {"t=-1," + right, signature.Malformed},
		"huge time":                   {"t=99999999999999999999," + right, signature.Malformed},
		"far time":                    {"t=1099511627776," + right, signature.Malformed},
		"empty time":                  {"t=," + right, signature.Malformed},
		"spaces":                      {"t=1700000000, " + right, signature.Malformed},
		"no pairs":                    {"hello", signature.Malformed},
		"trailing comma":              {"t=1700000000," + right + ",", signature.Malformed},
		"empty":                       {"", signature.Missing},
		"cut signature":               {"t=1700000000,v1=" + datedSum[:62], signature.Wrong},
		"empty signature":             {"t=1700000000,v1=", signature.Wrong},
		"another time than signed":    {"t=1700000001," + right, signature.Wrong},
		"as many signatures as read":  {"t=1700000000," + strings.Repeat("v1=00,", 99) + right, 0},
		"more signatures than read":   {"t=1700000000," + strings.Repeat("v1=00,", 100) + right, signature.Malformed},
		"more items than read":        {"t=1700000000," + strings.Repeat("v0=00,", 400) + right, signature.Malformed},
		"longer than a header may be": {"t=1700000000," + right + ",x=" + strings.Repeat("y", 8<<10), signature.Malformed},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := dated.Verify([][]byte{[]byte(datedKey)}, request("X-Dated", test.header), tolerance)
			if problem(err) != test.want {
				t.Errorf("verify: %v, want problem %d", err, test.want)
			}
		})
	}
}

func TestBareHeaders(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
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
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := bare.Verify([][]byte{[]byte(bareKey)}, request("X-Bare", test.header), tolerance)
			if problem(err) != test.want {
				t.Errorf("verify: %v, want problem %d", err, test.want)
			}
		})
	}
}

func TestAnySecretOfSeveral(t *testing.T) {
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

// Remembered secrets stay apart: each proves what it made and nothing else, in any order.
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

// Everyone can sign with an empty key, which is all that a bare prefix holds.
func TestVerify_secretThatHoldsNoKey_provesNothing(t *testing.T) {
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

func TestErrorsHoldNoRightSignature(t *testing.T) {
	t.Parallel()
	r := request("X-Dated", "t=1700000000,v1=00")
	_, err := dated.Verify([][]byte{[]byte(datedKey)}, r, tolerance)
	if err == nil || strings.Contains(err.Error(), datedSum[:8]) || strings.Contains(err.Error(), datedKey) {
		t.Errorf("error %v", err)
	}
}

func TestFreshness(t *testing.T) {
	t.Parallel()
	tests := map[time.Duration]signature.Problem{
		-tolerance - 1: signature.Future, -tolerance: 0, 0: 0, tolerance: 0, tolerance + 1: signature.Stale,
	}
	for age, want := range tests {
		r := request("X-Dated", "t=1700000000,v1="+datedSum)
		r.ReceivedAt = time.Unix(signedAt, 0).Add(age)
		if _, err := dated.Verify([][]byte{[]byte(datedKey)}, r, tolerance); problem(err) != want {
			t.Errorf("age %s: %v, want problem %d", age, err, want)
		}
	}
}

// The tolerance that a source sets counts in place of the scheme's, be it longer or shorter.
func TestVerify_tolerance_isTheSourcesBeforeTheSchemes(t *testing.T) {
	t.Parallel()
	minute := dated
	minute.Timestamp = &signature.Clock{From: signature.MustRef("item:t"), Tolerance: time.Minute}
	for given, counts := range map[time.Duration]time.Duration{0: time.Minute, time.Second: time.Second, time.Hour: time.Hour} {
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

// Times that no difference can hold are stale or far ahead all the same.
func TestFarTimesAreNotFresh(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[int64]signature.Problem{0: signature.Stale, 11_000_000_000: signature.Future, 1<<40 - 1: signature.Future} {
		at := time.Unix(seconds, 0)
		r := request("X-Dated", sign(t, &dated, datedKey, body, at))
		if _, err := dated.Verify([][]byte{[]byte(datedKey)}, r, tolerance); problem(err) != want {
			t.Errorf("signed at %s: %v, want problem %d", at.UTC(), err, want)
		}
	}
}
