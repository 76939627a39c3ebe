package provider_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// Two schemes that share a header, and one that the sender must name.
var several = []*signature.Scheme{
	{Name: "text", Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Test")}, Separator: " ", Assign: ",", Item: "v1"},
		Timestamp: &signature.Clock{From: signature.MustRef("header:X-Time")}, Message: signature.MustTemplate("{timestamp}.{body}")},
	{Name: "hex", Key: signature.Key{Form: signature.KeyHex}, Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Test")}, Separator: " ", Assign: ",", Item: "v1"},
		Timestamp: &signature.Clock{From: signature.MustRef("header:X-Time")}, Message: signature.MustTemplate("{timestamp}.{body}")},
	{Name: "named", Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Other")}}, Message: signature.MustTemplate("{body}"),
		When: &signature.Condition{From: signature.MustRef("header:X-Version"), Is: "2"}},
}

func TestProve(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0).UTC()
	const key = "00ff"
	sign := func(scheme int) http.Header {
		r := signature.Request{Body: []byte("body")}
		if err := several[scheme].Sign([]byte(key), &r, at); err != nil {
			t.Fatal(err)
		}
		return r.Header
	}
	with := func(h http.Header, name, value string) http.Header {
		h.Set(name, value)
		return h
	}
	tests := map[string]struct {
		header http.Header
		age    time.Duration
		scheme string
		want   provider.Reason
	}{
		"by the first":          {sign(0), 0, "text", ""},
		"in time":               {sign(0), provider.DefaultTolerance, "text", ""},
		"stale":                 {sign(0), provider.DefaultTolerance + 1, "", provider.StaleTimestamp},
		"future":                {sign(0), -provider.DefaultTolerance - 1, "", provider.FutureTimestamp},
		"by the second":         {sign(1), 0, "hex", ""},
		"the second is late":    {sign(1), time.Hour, "", provider.StaleTimestamp},
		"the second is early":   {sign(1), -time.Hour, "", provider.FutureTimestamp},
		"by the named one":      {with(sign(2), "X-Version", "2"), 0, "named", ""},
		"it is not named":       {with(sign(2), "X-Version", ""), 0, "", provider.MissingSignature},
		"it is named otherwise": {with(sign(2), "X-Version", "1"), 0, "", provider.MissingSignature},
		"by none":               {with(sign(0), "X-Test", "v1,00"), 0, "", provider.WrongSignature},
		"not readable":          {with(sign(0), "X-Test", "00"), 0, "", provider.MalformedSignature},
		"right beside wrong":    {with(with(sign(0), "X-Other", "00"), "X-Version", "2"), 0, "text", ""},
		"wrong beside late":     {with(with(sign(0), "X-Other", "00"), "X-Version", "2"), time.Hour, "", provider.StaleTimestamp},
		"nothing":               {http.Header{}, 0, "", provider.MissingSignature},
	}
	src := &provider.Source{Secrets: []provider.Secret{{Name: "old", Value: []byte("0a0b")}, {Name: "new", Value: []byte(key)}}}
	for name, test := range tests {
		d := &provider.Delivery{Header: test.header, Body: []byte("body"), ReceivedAt: at.Add(test.age)}
		v, err := provider.Prove(src, d, several...)
		var r *provider.Rejection
		switch {
		case test.want == "":
			dated := test.scheme != "named"
			if err != nil || v.Scheme != test.scheme || v.Secret != "new" || v.SignedAt.Equal(at) != dated {
				t.Errorf("%s: %+v, %v, want %s", name, v, err, test.scheme)
			}
		case !errors.As(err, &r) || r.Reason != test.want || r.Detail == "" || r.Reason.Explain() == string(r.Reason):
			t.Errorf("%s: %+v, %v, want %s, explained", name, v, err, test.want)
		}
	}
}
