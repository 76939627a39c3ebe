package signature_test

import (
	"bytes"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/signature"
)

// Each sender's scheme can be what it says, and what it signs is accepted: with the secret among others, at the edge of its
// tolerance, and not beyond.
func TestEachSchemeProvesWhatItSigns(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, row row) {
		if err := row.Check(); err != nil {
			t.Fatal(err)
		}
		if err := row.CheckSecret([]byte(row.key())); err != nil {
			t.Fatal(err)
		}
		signed := time.Unix(signedAt, 0).UTC()
		r := row.delivery(row.body)
		if row.Present(r) {
			t.Error("present before it is signed")
		}
		if err := row.Sign([]byte(row.key()), &r, signed); err != nil {
			t.Fatal(err)
		}
		if !row.Present(r) {
			t.Error("signed and not present")
		}
		secrets := [][]byte{[]byte("another"), {}, []byte(row.key()), []byte("a third")}
		for age, want := range row.ages() {
			r.ReceivedAt = signed.Add(age)
			m, err := verify(t, &row.Scheme, secrets, r, 0)
			if problem(err) != want {
				t.Errorf("age %s: %v, want problem %d", age, err, want)
			}
			if err == nil && (m.Secret != 2 || row.Timestamp != nil && !m.SignedAt.Equal(signed)) {
				t.Errorf("age %s: %+v", age, m)
			}
		}
	})
}

// ages are times between signing and receipt, and what they must lead to.
func (r row) ages() map[time.Duration]signature.Problem {
	if r.Timestamp == nil || r.Timestamp.Unchecked {
		return map[time.Duration]signature.Problem{0: 0, 24 * time.Hour: 0, -24 * time.Hour: 0}
	}
	most := r.Timestamp.Tolerance
	if most == 0 {
		most = signature.DefaultTolerance
	}
	return map[time.Duration]signature.Problem{0: 0, most: 0, -most: 0, most + 1: signature.Stale, -most - 1: signature.Future}
}

// No change of one byte is accepted: of the body where it is signed, of the signature's place, nor with another secret.
func TestNoChangeIsAccepted(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, row row) {
		r := row.delivery(row.body)
		r.ReceivedAt = time.Unix(signedAt, 0)
		if err := row.Sign([]byte(row.key()), &r, r.ReceivedAt); err != nil {
			t.Fatal(err)
		}
		refused := func(what string, r signature.Request, secret string) {
			t.Helper()
			if _, err := verify(t, &row.Scheme, [][]byte{[]byte(secret)}, r, 0); err == nil {
				t.Errorf("accepted: %s", what)
			}
		}
		refused("another secret", r, "another"+signature.DemoMark)
		if !row.loose {
			for i := range r.Body {
				changed := r
				changed.Body = bytes.Clone(r.Body)
				changed.Body[i] ^= 1
				refused(fmt.Sprintf("body with another byte %d", i), changed, row.key())
			}
			changed := r
			changed.Body = append(bytes.Clone(r.Body), 'x')
			refused("a longer body", changed, row.key())
		}
		if place := row.Signature.In[0]; place.Kind == signature.Header {
			name := http.CanonicalHeaderKey(strings.Replace(place.Name, "#", "1", 1))
			value := r.Header.Get(name)
			for i := range value {
				changed := r
				changed.Header = r.Header.Clone()
				changed.Header.Set(name, value[:i]+"!"+value[i+1:])
				refused(fmt.Sprintf("%s with another byte %d", name, i), changed, row.key())
			}
			changed := r
			changed.Header = r.Header.Clone()
			changed.Header[name] = []string{value, value}
			refused("two headers", changed, row.key())
		}
	})
}

// verify is Verify, and wants Explain to agree with it and to tell no secret.
func verify(t interface {
	Helper()
	Errorf(format string, args ...any)
}, s *signature.Scheme, secrets [][]byte, r signature.Request, tolerance time.Duration) (signature.Match, error) {
	t.Helper()
	m, err := s.Verify(secrets, r, tolerance)
	steps := s.Explain(secrets, r, tolerance)
	failed := func(names ...string) bool {
		return slices.ContainsFunc(steps[:len(steps)-1], func(s signature.Step) bool { return slices.Contains(names, s.Name) && !s.OK })
	}
	matched := slices.ContainsFunc(steps, func(s signature.Step) bool { return s.Name == "secret" && s.OK })
	agrees := false
	switch problem(err) {
	case 0:
		agrees = matched && !failed("scheme", "place", "time", "reading", "body", "age", "hint")
	case signature.Missing:
		agrees = failed("scheme", "place")
	case signature.Malformed:
		agrees = failed("place", "item", "signature", "time", "reading", "message", "body")
	case signature.Wrong:
		agrees = failed("secret") && !matched || failed("body")
	case signature.Stale, signature.Future:
		agrees = matched && failed("age")
	}
	if last := steps[len(steps)-1]; last.Name != "verdict" || last.OK != (err == nil) || !agrees {
		t.Errorf("verify: %v; explained as %+v", err, steps)
	}
	tellsNothing(t, s, secrets, r, steps, err)
	return m, err
}

var runs = regexp.MustCompile(`[A-Za-z0-9+/_-]{20,}`)

// tellsNothing wants neither a part of a secret, nor of a right signature, nor a control character in what is said.
func tellsNothing(t interface {
	Helper()
	Errorf(format string, args ...any)
}, s *signature.Scheme, secrets [][]byte, r signature.Request, steps []signature.Step, err error) {
	t.Helper()
	var said strings.Builder
	for _, step := range steps {
		said.WriteString(step.Detail)
	}
	if err != nil {
		said.WriteString(err.Error())
	}
	hide := func(text string, size int) {
		for i := 0; i+size <= len(text); i += 4 {
			if part := text[i : i+size]; strings.Contains(said.String(), part) {
				t.Errorf("%q is told: %+v, %v", part, steps, err)
			}
		}
	}
	for _, secret := range secrets {
		hide(string(secret), 8)
		signed := r
		signed.Header, signed.Body = r.Header.Clone(), bytes.Clone(r.Body)
		if s.Sign(secret, &signed, r.ReceivedAt) != nil {
			continue
		}
		place := s.Signature.In[0]
		place.Name = strings.Replace(place.Name, "#", "1", 1)
		value, _ := signature.Find(signed, place)
		for _, run := range runs.FindAllString(value, -1) {
			hide(run, 16)
		}
	}
	if strings.ContainsFunc(said.String(), func(r rune) bool { return r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }) {
		t.Errorf("control characters: %q", said.String())
	}
}

// What is signed is accepted in every form a scheme can have, and no change of one byte of the body is.
func TestSignedIsAcceptedAndChangedIsNot(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScheme(t)
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		secret := []byte(demoSecret)
		if s.Method == signature.HMAC || s.Method == signature.Hash {
			secret = rapid.SliceOfN(rapid.Byte(), 12, 80).Draw(t, "secret")
			secret = append(secret, '.') // no demo secret
		}
		content := rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "body")
		at := time.Unix(rapid.Int64Range(0, 1<<36).Draw(t, "seconds"), 0)
		r := signature.Request{Header: http.Header{}, Body: content, ReceivedAt: at}
		if err := s.Sign(secret, &r, at); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Verify([][]byte{secret}, r, 0); err != nil {
			t.Fatalf("signed and refused: %v", err)
		}
		content[rapid.IntRange(0, len(content)-1).Draw(t, "at")] ^= rapid.ByteRange(1, 255).Draw(t, "flip")
		if _, err := s.Verify([][]byte{secret}, r, 0); problem(err) != signature.Wrong {
			t.Fatalf("changed and accepted, or refused as %v", err)
		}
	})
}

// drawScheme draws every method, digest, encoding, layout and place of the time.
func drawScheme(t *rapid.T) *signature.Scheme {
	s := &signature.Scheme{Name: "drawn",
		Method:   rapid.SampledFrom([]signature.Method{signature.HMAC, signature.HMAC, signature.Hash, signature.Ed25519, signature.ECDSA}).Draw(t, "method"),
		Digest:   rapid.SampledFrom([]signature.Digest{signature.SHA256, signature.SHA1, signature.SHA512}).Draw(t, "digest"),
		Encoding: rapid.SampledFrom([]signature.Encoding{signature.Hex, signature.Base64, signature.Base64URL}).Draw(t, "encoding"),
		Signature: rapid.SampledFrom([]signature.Layout{
			{In: in("header:X-A")}, {In: in("header:X-A", "header:X-B"), Prefix: "sha256="}, {In: in("header:X-#")},
			{In: in("header:X-A"), Separator: ",", Assign: "=", Item: "v1"}, {In: in("header:X-A"), Separator: ";", Spaces: true, Assign: ":", Item: "s"},
			{In: in("header:X-A"), Separator: ",", Skip: 1}, {In: in("header:X-A"), Group: " ", Separator: ",", Assign: "=", Item: "v1", Prefix: "x-"},
		}).Draw(t, "layout"),
	}
	places := []string{"", "header:X-Time"}
	switch {
	case s.Signature.Assign != "":
		places = append(places, "item:t")
	case s.Signature.Skip > 0:
		places = []string{"item:0"}
	}
	message := "{body}"
	if place := rapid.SampledFrom(places).Draw(t, "time"); place != "" {
		units := []signature.Unit{signature.Seconds, signature.Milliseconds, signature.Magnitude}
		if place == "header:X-Time" {
			units = append(units, signature.RFC3339)
		}
		s.Timestamp = at(place, rapid.SampledFrom(units).Draw(t, "unit"))
		message = rapid.SampledFrom([]string{"{timestamp}.{body}", "{body}{timestamp}", "v0:{timestamp}:{body}"}).Draw(t, "message")
	}
	if s.Method == signature.Hash {
		message = "{secret}" + message
	}
	s.Message = text(message)
	return s
}

// Explain goes with Verify whatever is sent, and tells no secret.
func TestExplainAgreesWithVerify(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := drawScheme(t)
		secret := []byte(demoSecret)
		at := time.Unix(signedAt, 0)
		r := signature.Request{Header: http.Header{}, Body: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "body"), ReceivedAt: at}
		if err := s.Sign(secret, &r, at); err != nil {
			t.Fatal(err)
		}
		names := []string{"X-A", "X-B", "X-1", "X-Time"}
		name := rapid.SampledFrom(names).Draw(t, "header")
		value := r.Header.Get(name)
		switch rapid.SampledFrom([]string{"nothing", "body", "newline", "no header", "twice", "garbage", "cut", "extra", "secret", "late"}).Draw(t, "spoiled") {
		case "body":
			r.Body = append(bytes.Clone(r.Body), 'x')
		case "newline":
			r.Body = append(bytes.Clone(r.Body), '\n')
		case "no header":
			r.Header.Del(name)
		case "twice":
			r.Header[name] = []string{value, value}
		case "garbage":
			r.Header.Set(name, rapid.String().Draw(t, "garbage"))
		case "cut":
			r.Header.Set(name, value[:rapid.IntRange(0, len(value)).Draw(t, "length")])
		case "extra":
			r.Header.Set(name, value+rapid.StringMatching(`[,; =a-z0-9]{0,20}`).Draw(t, "extra"))
		case "secret":
			secret = []byte("not the one " + rapid.StringMatching(`[a-z]{8}`).Draw(t, "another"))
		case "late":
			r.ReceivedAt = at.Add(time.Duration(rapid.IntRange(-1000, 1000).Draw(t, "seconds")) * time.Second)
		}
		_, _ = verify(t, s, [][]byte{[]byte("an unused one"), secret}, r, 0)
	})
}
