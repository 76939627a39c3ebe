package oracles_test

import (
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
)

// each runs a property of every SDK.
func each(t *testing.T, fits func(*oracle) bool, property func(*rapid.T, *oracle)) {
	t.Helper()
	t.Parallel()
	seen := map[string]bool{}
	for _, o := range slices.Concat(goSDKs(), nodeSDKs()) {
		if seen[o.sdk] {
			t.Errorf("two oracles are called %s", o.sdk)
		}
		seen[o.sdk] = true
		if fits != nil && !fits(o) {
			continue
		}
		t.Run(o.sdk, func(t *testing.T) {
			t.Parallel()
			if o.node {
				child(t)
			}
			rapid.Check(t, func(t *rapid.T) { property(t, o) })
		})
	}
}

// justNow is a little in the past: an SDK whose clock has whole seconds may find anything else in
// the future.
func justNow() time.Time { return time.Now().Add(-5 * time.Second) }

// signed draws a delivery signed by either.
func (o *oracle) signed(t *rapid.T, at time.Time) (keys, *provider.Delivery) {
	k, body, query := o.keys.Draw(t, "keys"), o.body.Draw(t, "body"), ""
	if len(o.queries) > 0 {
		query = rapid.SampledFrom(o.queries).Draw(t, "query")
	}
	if o.sign != nil && rapid.Bool().Draw(t, "signed by the SDK") {
		return k, o.signedThere(t, k, body, query, at)
	}
	return k, o.signedHere(t, k, body, query, at)
}

// Both accept what either signs.
func TestSigned(t *testing.T) {
	each(t, nil, func(t *rapid.T, o *oracle) {
		k, d := o.signed(t, justNow())
		if v := o.ask(t, k, address, d); !v.here || !v.there {
			t.Fatalf("%+v: %s", v, shown(d))
		}
	})
}

// Neither accepts another secret, another body, another address or another time than was signed.
func TestForged(t *testing.T) {
	each(t, nil, func(t *rapid.T, o *oracle) {
		k, d := o.signed(t, justNow())
		before, base := copied(d), address
		parts := append([]string{"secret"}, o.headers...)
		if !o.bodyOpen {
			parts = append(parts, "body", "body") // it is the largest part
		}
		if o.tamper != nil {
			parts = append(parts, "field", "field")
		}
		if o.url {
			parts = append(parts, "address", "query")
		}
		part := rapid.SampledFrom(parts).Draw(t, "changed")
		switch part {
		case "secret":
			was := k.verifier
			k = o.keys.Filter(func(k keys) bool { return k.verifier != was }).Draw(t, "other keys")
		case "body":
			d.Body = []byte(changed(t, string(d.Body), false))
		case "field":
			d.Body = []byte(o.tamper(t, string(d.Body)))
		case "address":
			base = strings.Replace(address, "shop",
				rapid.SampledFrom([]string{"Shop", "sho", "shop/", "shop2", "%73hop"}).Draw(t, "path"), 1)
		case "query":
			d.Query = rapid.SampledFrom([]string{"", "a=1", "tenant=8", "tenant=7&"}).Filter(
				func(q string) bool { return q != before.Query }).Draw(t, "other query")
		default:
			d.Header[part] = []string{changed(t, d.Header.Get(part), true)}
			if unspaced(d.Header.Get(part)) == unspaced(before.Header.Get(part)) {
				return // no item is another
			}
		}
		if part == "body" && o.same != nil && o.same(string(before.Body), string(d.Body)) {
			return
		}
		v := o.ask(t, k, base, d)
		if v.here || v.there && o.excuse(false, before, d) == "" {
			t.Fatalf("with another %s: %+v\nbefore: %s\nafter: %s", part, v, shown(before), shown(d))
		}
	})
}

// However a header that signs is written, both say the same of it. Where they do not, there is a
// reason.
func TestHeader_otherSpelling_isAccepted(t *testing.T) {
	each(t, func(o *oracle) bool { return len(o.headers) > 0 }, func(t *rapid.T, o *oracle) {
		k, d := o.signed(t, justNow())
		before := copied(d)
		name := rapid.SampledFrom(o.headers).Draw(t, "header")
		d.Header.Del(name)
		for _, value := range respelt(t, before.Header.Get(name)) {
			d.Header.Add(name, strings.TrimSpace(value)) // as every server does
		}
		v := o.ask(t, k, address, d)
		if v.here != v.there && o.excuse(v.here, before, d) == "" {
			t.Fatalf("%+v\nbefore: %s\nafter: %s", v, shown(before), shown(d))
		}
	})
}

// A signed time is judged by either within its own window. Where ours is wider there is a reason.
func TestTimes(t *testing.T) {
	// So near to an end of a window no clock is asked: this machine may be slow.
	const margin = 28 * time.Second
	each(t, func(o *oracle) bool { return o.ours != nil }, func(t *rapid.T, o *oracle) {
		if (o.ours.past > o.theirs.past || o.ours.future > o.theirs.future) && o.because == "" {
			t.Fatalf("%+v is wider than the SDK's %+v, and nobody says why", *o.ours, *o.theirs)
		}
		ends := []time.Duration{-o.ours.past, -o.theirs.past, o.ours.future, o.theirs.future}
		away := func(seconds int64) bool {
			return !slices.ContainsFunc(ends,
				func(end time.Duration) bool { return (time.Duration(seconds)*time.Second - end).Abs() < margin })
		}
		near := rapid.Int64Range(-700, 700)
		seconds := rapid.OneOf(near, near, rapid.Int64Range(-40_000_000, 40_000_000)).Filter(away).Draw(t,
			"seconds from now")
		offset := time.Duration(seconds) * time.Second
		k, d := o.signed(t, time.Now().Add(offset))
		within := func(w *window) bool { return -w.past <= offset && offset <= w.future }
		if v, want := o.ask(t, k, address, d), (verdict{within(o.ours), within(o.theirs)}); v != want {
			t.Fatalf("signed %s from now: %+v, want %+v: %s", offset, v, want, shown(d))
		}
	})
}

func unspaced(s string) string { return strings.ReplaceAll(s, " ", "") }

// changed changes a text by one byte: to another, to none, or to one more. Of a header the case of
// a letter is no change.
func changed(t *rapid.T, text string, header bool) string {
	at := rapid.IntRange(0, max(0, len(text)-1)).Draw(t, "at")
	bits := rapid.ByteRange(1, 255)
	if header {
		bits = rapid.SampledFrom([]byte{1, 2, 4, 8, 16})
	}
	kind := rapid.SampledFrom([]string{"other", "fewer", "more"}).Draw(t, "change")
	switch {
	case text == "" || kind == "more":
		return text[:at] + rapid.SampledFrom([]string{"0", "a", "}", "Z"}).Draw(t, "byte") + text[at:]
	case kind == "fewer":
		return text[:at] + text[at+1:]
	}
	return text[:at] + string([]byte{text[at] ^ bits.Draw(t, "bits")}) + text[at+1:]
}

// respelt writes a header's value otherwise: in another case, with more around it, several times,
// or not at all.
func respelt(t *rapid.T, value string) []string {
	at := rapid.IntRange(0, max(0, len(value)-1)).Draw(t, "at")
	extra := rapid.SampledFrom([]string{" ", ",", ";", "=", "+", "0", "\t", "v1=", "v1,", "t=1", "sha256=", "sha1=",
		"v0=", ", ", "==", "-", "_", "\u00a0"})
	switch rapid.IntRange(0, 9).Draw(t, "spelling") {
	case 0:
		return []string{strings.ToUpper(value)}
	case 1:
		return []string{value[:at] + strings.ToUpper(value[at:])}
	case 2:
		return []string{value[:at] + extra.Draw(t, "extra") + value[at:]}
	case 3:
		return []string{extra.Draw(t, "extra") + value}
	case 4:
		return []string{value + extra.Draw(t, "extra")}
	case 5:
		return []string{value + extra.Draw(t, "extra") + value}
	case 6:
		return []string{value[:at]}
	case 7:
		return []string{value, value}
	case 8:
		return []string{value + extra.Draw(t, "extra") + junk(value)}
	}
	return nil
}

// junk is another value of the same form.
func junk(value string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '8' || r >= 'a' && r <= 'e' {
			return r + 1
		}
		return r
	}, value)
}

func canonical(names ...string) []string {
	for i, name := range names {
		names[i] = textproto.CanonicalMIMEHeaderKey(name)
	}
	return names
}
