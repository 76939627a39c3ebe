package provider_test

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// Two schemes share a header, and the third must be selected by a header.
var severalSchemes = []*signature.Scheme{
	{Name: "text", Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Test")}, Separator: " ",
		KeySeparator: ",", Item: "v1"},
		Timestamp: &signature.Clock{From: signature.MustRef("header:X-Time")},
		Message:   signature.MustTemplate("{timestamp}.{body}")},
	{Name: "hex", Key: signature.Key{Form: signature.KeyHex},
		Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Test")}, Separator: " ",
			KeySeparator: ",", Item: "v1"},
		Timestamp: &signature.Clock{From: signature.MustRef("header:X-Time")},
		Message:   signature.MustTemplate("{timestamp}.{body}")},
	{Name: "named", Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Other")}},
		Message: signature.MustTemplate("{body}"),
		When:    &signature.Condition{From: signature.MustRef("header:X-Version"), Is: "2"}},
}

func TestVerifySchemes_deliveries_chooseMostSpecificRejection(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0).UTC()
	const key = "00ff"
	sign := func(scheme int) http.Header {
		r := signature.Request{Body: []byte("body")}
		if err := severalSchemes[scheme].Sign([]byte(key), &r, at); err != nil {
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
		"signed with the first scheme":    {sign(0), 0, "text", ""},
		"oldest accepted time":            {sign(0), provider.DefaultTolerance, "text", ""},
		"stale":                           {sign(0), provider.DefaultTolerance + 1, "", provider.StaleTimestamp},
		"future":                          {sign(0), -provider.DefaultTolerance - 1, "", provider.FutureTimestamp},
		"signed with the second scheme":   {sign(1), 0, "hex", ""},
		"second scheme, too late":         {sign(1), time.Hour, "", provider.StaleTimestamp},
		"second scheme, too early":        {sign(1), -time.Hour, "", provider.FutureTimestamp},
		"signed with the selected scheme": {with(sign(2), "X-Version", "2"), 0, "named", ""},
		"scheme not selected":             {with(sign(2), "X-Version", ""), 0, "", provider.MissingSignature},
		"another scheme selected":         {with(sign(2), "X-Version", "1"), 0, "", provider.MissingSignature},
		"signed with no secret":           {with(sign(0), "X-Test", "v1,00"), 0, "", provider.WrongSignature},
		"unreadable signature":            {with(sign(0), "X-Test", "00"), 0, "", provider.MalformedSignature},
		"right and wrong signature":       {with(with(sign(0), "X-Other", "00"), "X-Version", "2"), 0, "text", ""},
		"late and wrong signature": {with(with(sign(0), "X-Other", "00"), "X-Version", "2"), time.Hour, "",
			provider.StaleTimestamp},
		"no signature": {http.Header{}, 0, "", provider.MissingSignature},
	}
	src := &provider.Source{Secrets: []provider.Secret{{Name: "old", Value: []byte("0a0b")},
		{Name: "new", Value: []byte(key)}}}
	for name, test := range tests {
		d := &provider.Delivery{Header: test.header, Body: []byte("body"), ReceivedAt: at.Add(test.age)}
		v, err := provider.VerifySchemes(src, d, severalSchemes...)
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
