package oracles_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
)

// difference is a way of writing a delivery that one side takes and the other refuses.
type difference struct {
	// here: it is Postern that takes it; else the SDK.
	here bool
	why  string
	// header is which of the oracle's headers the example writes otherwise.
	header int
	// is recognises it.
	is func(before, after part) bool
	// example makes one of a delivery.
	example func(part) part
}

// part is what differences are about: the values of a header, the body and the query.
type part struct {
	header []string
	body   string
	query  string
}

func (p part) value() string {
	if len(p.header) != 1 {
		return ""
	}
	return p.header[0]
}

// respell is a difference in how a header is written.
func respell(here bool, why string, is func(before, after string) bool, example func(string) string) difference {
	return difference{
		here: here, why: why,
		is: func(before, after part) bool {
			return len(after.header) == 1 && before.body == after.body && before.query == after.query &&
				is(before.value(), after.value())
		},
		example: func(p part) part { p.header = []string{example(p.value())}; return p },
	}
}

// What Postern takes.
var (
	upperHex = respell(true, "digits above nine in upper case are the same bytes", strings.EqualFold,
		func(v string) string {
			i := strings.LastIndexAny(v, "=") + 1
			return v[:i] + strings.ToUpper(v[i:])
		})
	padding = respell(true, "base64 for addresses may be padded",
		func(before, after string) bool { return strings.TrimRight(after, "=") == before },
		func(v string) string { return v + "=" })
	skippedItem = func(separator, more string) difference {
		return respell(true, "items beside the right ones are skipped: a sender may add some, and signs with "+
			"each of its secrets while they change",
			func(before, after string) bool {
				items := strings.Split(after, separator)
				for i := range items {
					items[i] = strings.ToLower(strings.Trim(items[i], " "))
				}
				return !slices.ContainsFunc(strings.Split(before, separator), func(item string) bool {
					return !slices.Contains(items, strings.ToLower(strings.Trim(item, " ")))
				})
			}, func(v string) string { return more + separator + v })
	}
)

// What SDKs take.
var (
	twoTimes = respell(false, "of two times it takes the last; here there may be but one",
		func(before, after string) bool { return strings.Count(after, "t=") > strings.Count(before, "t=") },
		func(v string) string { return "t=1," + v })
	emptyItem = respell(false, "it passes over items that say nothing; here they are malformed",
		func(before, after string) bool {
			items := strings.Split(after, ",")
			return slices.Contains(items, before) &&
				slices.ContainsFunc(items, func(item string) bool { return !strings.Contains(item, "=") })
		},
		func(v string) string { return "," + v })
	thirdPart = respell(false, "it reads no further than a second comma of an item",
		func(before, after string) bool {
			return slices.ContainsFunc(strings.Fields(after),
				func(item string) bool { return strings.HasPrefix(item, before+",") })
		},
		func(v string) string { return v + "," })
	anyPairs = respell(false, "it makes a byte of every two characters, whether or not they are digits",
		func(before, after string) bool { return bytes.Equal(parsedPairs(before), parsedPairs(after)) },
		func(v string) string {
			for i := 0; i < len(v); i += 2 {
				if v[i:i+2] == "00" {
					return v[:i] + "xx" + v[i+2:]
				}
			}
			return v
		})
	trailing = respell(false, "it passes over bytes that follow the signature",
		func(before, after string) bool {
			was, _ := base64.StdEncoding.DecodeString(before)
			is, err := base64.StdEncoding.DecodeString(after)
			return err == nil && bytes.HasPrefix(is, was)
		}, func(v string) string {
			b, _ := base64.StdEncoding.DecodeString(v)
			return base64.StdEncoding.EncodeToString(append(b, 0))
		})
	spareBits = respell(false, "Go's base64 passes over the bits that are too many", func(before, after string) bool {
		was, _ := base64.StdEncoding.DecodeString(before)
		is, err := base64.StdEncoding.DecodeString(after)
		return err == nil && bytes.Equal(was, is)
	}, func(v string) string {
		const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
		last := len(strings.TrimRight(v, "=")) - 1
		return v[:last] + digits[strings.IndexByte(digits, v[last])+1:][:1] + v[last+1:]
	})
	severalLines = difference{
		why: "of several header lines it reads the first, or all as one; here only one may be there, since " +
			"a proxy in between may read another one",
		is:      func(before, after part) bool { return len(after.header) > 1 },
		example: func(p part) part { p.header = []string{p.value(), p.value()}; return p },
	}
	looseBase64 = respell(false, "Node's base64 passes over what is none, and over the bits that are too many",
		func(before, after string) bool { return bytes.Equal(nodeBase64(before), nodeBase64(after)) },
		func(v string) string { return strings.TrimRight(v, "=") })
	looseHex = respell(false, "Node's hexadecimal ends before what is none",
		func(before, after string) bool {
			return len(after) > len(before) && strings.EqualFold(before, after[:len(before)]) &&
				!isHex(after[len(before):])
		},
		func(v string) string { return v + ", " })
	anyPrefix = respell(false, "it cuts seven bytes off without a look at them",
		func(before, after string) bool { return len(after) > 7 && after[7:] == before[7:] },
		func(v string) string { return "sha512=" + v[7:] })
	noPrefix = respell(false, "it needs no sha256= before the digits",
		func(before, after string) bool { return after == strings.TrimPrefix(before, "sha256=") },
		func(v string) string { return strings.TrimPrefix(v, "sha256=") })
	looseTime = respell(false, "it reads the time as a number and signs that number, so the time may be written "+
		"otherwise than it was signed",
		func(before, after string) bool { return plainNumbers(before) == plainNumbers(after) },
		func(v string) string { return strings.Replace(v, "1", "+1", 1) })
	looseClock = func() difference { d := looseTime; d.header = 1; return d }()
	anyKey     = respell(false, "it takes the first two items by their place, whatever they are called",
		func(before, after string) bool { return slices.Equal(firstTwo(before), firstTwo(after)) },
		func(v string) string { return strings.Replace(v, "v1=", "v0=", 1) })
	rewrittenQuery = difference{
		why: "it also tries the address with its query written again",
		is: func(before, after part) bool {
			was, _ := url.ParseQuery(before.query)
			is, _ := url.ParseQuery(after.query)
			return slices.Equal(before.header, after.header) && was.Encode() == is.Encode()
		},
		example: func(p part) part { p.query += "&"; return p },
	}
	rewrittenBody = difference{
		why: "it writes the body again before it checks the signature, so the body may differ from the signed one",
		is: func(before, after part) bool {
			var was, is any
			return slices.Equal(before.header, after.header) && json.Unmarshal([]byte(before.body), &was) == nil &&
				json.Unmarshal([]byte(after.body), &is) == nil && compact(was) == compact(is)
		},
		example: func(p part) part { p.body += " "; return p },
	}
)

// nodeBase64 is what Buffer.from makes of a text.
func nodeBase64(text string) []byte {
	text, _, _ = strings.Cut(text, "=")
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '-':
			return '+'
		case r == '_':
			return '/'
		case r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '+' || r == '/':
			return r
		}
		return -1
	}, text)
	out, _ := base64.RawStdEncoding.DecodeString(text) // as far as it goes
	return out
}

// parsedPairs is what parseInt makes of every two characters of a text.
func parsedPairs(text string) []byte {
	var out []byte
	for pair := range slices.Chunk([]byte(text), 2) {
		digits := strings.TrimLeft(string(pair), " \t")
		if end := strings.IndexFunc(digits,
			func(r rune) bool { return !strings.ContainsRune("0123456789abcdefABCDEF", r) }); end >= 0 {
			digits = digits[:end]
		}
		n, _ := strconv.ParseUint(digits, 16, 8) // of none, nothing
		out = append(out, byte(n))
	}
	return out
}

func isHex(text string) bool {
	return len(text) >= 2 && strings.Trim(text[:2], "0123456789abcdefABCDEF") == ""
}

// plainNumbers is a header with its first number written plainly.
func plainNumbers(text string) string {
	i := strings.IndexAny(text, "+0123456789")
	if i < 0 {
		return text
	}
	return text[:i] + strings.TrimLeft(text[i:], "+0")
}

// firstTwo are the values of the first two items.
func firstTwo(text string) []string {
	var out []string
	for _, item := range strings.SplitN(text, ",", 3) {
		if halves := strings.Split(item, "="); len(halves) > 1 && len(out) < 2 {
			out = append(out, halves[1])
		}
	}
	return out
}

func (o *oracle) part(d *provider.Delivery, header string) part {
	return part{d.Header[header], string(d.Body), d.Query}
}

// excuse is the reason why one side takes what the other refuses; "" where there is none.
func (o *oracle) excuse(here bool, before, after *provider.Delivery) string {
	headers := o.headers
	if len(headers) == 0 {
		headers = []string{""}
	}
	for _, header := range headers {
		was, is := o.part(before, header), o.part(after, header)
		if slices.Equal(was.header, is.header) && was.body == is.body && was.query == is.query {
			continue
		}
		for _, difference := range o.differs {
			if difference.here == here && difference.is(was, is) {
				return difference.why
			}
		}
	}
	return ""
}

// Every difference that is told is one: an example of it is taken by the one side, refused by the
// other, and recognised.
func TestDifferences(t *testing.T) {
	each(t, func(o *oracle) bool { return len(o.differs) > 0 }, func(t *rapid.T, o *oracle) {
		k, before := o.signed(t, justNow())
		if o.queries != nil && before.Query == "" {
			return // it is about an address with a query
		}
		difference := rapid.SampledFrom(o.differs).Draw(t, "difference")
		after := copied(before)
		header := o.headers[difference.header]
		example := difference.example(o.part(before, header))
		after.Header[header], after.Body, after.Query = example.header, []byte(example.body), example.query
		if same := o.part(before, header); slices.Equal(same.header, example.header) && same.body == example.body &&
			same.query == example.query {
			return // a signature without a letter has no upper case
		}
		if v, want := o.ask(t, k, address, after), (verdict{difference.here, !difference.here}); v != want {
			t.Errorf("%s: %+v, want %+v\nbefore: %s\nafter: %s", difference.why, v, want, shown(before), shown(after))
		}
		if o.excuse(difference.here, before, after) == "" {
			t.Errorf("%s: not recognised\nbefore: %s\nafter: %s", difference.why, shown(before), shown(after))
		}
	})
}
