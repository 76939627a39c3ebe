package signature_test

import (
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/signature"
)

// A scheme that proves less than it says is refused, in words that tell what is wrong.
func TestSchemesThatProveNothing(t *testing.T) {
	t.Parallel()
	bodyOnly := text("{body}")
	tests := map[string]struct {
		change func(s *signature.Scheme)
		want   string
	}{
		"no name":              {func(s *signature.Scheme) { s.Name = "" }, "no name"},
		"no place":             {func(s *signature.Scheme) { s.Signature.In = nil }, "does not say where"},
		"a place in the URL":   {func(s *signature.Scheme) { s.Signature.In = in("url") }, "cannot stand in url"},
		"the body as a place":  {func(s *signature.Scheme) { s.Signature.In = in("body") }, "cannot stand in body"},
		"no message":           {func(s *signature.Scheme) { s.Message = signature.Template{} }, "nothing of the request"},
		"only a literal":       {func(s *signature.Scheme) { s.Message = text("x") }, "nothing of the request"},
		"only the method":      {func(s *signature.Scheme) { s.Message = text("{method}") }, "nothing of the request"},
		"hash of the secret":   {func(s *signature.Scheme) { s.Method, s.Message = signature.Hash, text("{secret}") }, "nothing of the request"},
		"a bad alternative":    {func(s *signature.Scheme) { s.Or = []signature.Template{text("x")} }, "nothing of the request"},
		"names of events":      {func(s *signature.Scheme) { s.Message = text("{type}{body}") }, "names events"},
		"HMAC of the secret":   {func(s *signature.Scheme) { s.Message = text("{secret}{body}") }, "the secret is part"},
		"hash without it":      {func(s *signature.Scheme) { s.Method = signature.Hash }, "the secret is part"},
		"item without items":   {func(s *signature.Scheme) { s.Message = text("{item:t}{body}") }, "has none beside it"},
		"time without a clock": {func(s *signature.Scheme) { s.Message = text("{timestamp}{body}") }, "says of none"},
		"unsigned time":        {func(s *signature.Scheme) { s.Timestamp = at("header:X-T", 0) }, "the time in header:X-T is not signed"},
		"unsigned item": {func(s *signature.Scheme) {
			s.Signature = pairs("X-A", "v1")
			s.Timestamp = at("item:t", 0)
		}, "the time in item:t is not signed"},
		"time signed in one of two": {func(s *signature.Scheme) {
			s.Timestamp, s.Message, s.Or = at("header:X-T", 0), text("{timestamp}{body}"), []signature.Template{bodyOnly}
		}, "is not signed"},
		"time in an unsigned body":               {func(s *signature.Scheme) { s.Timestamp, s.Message = at("json:t", 0), text("{url}") }, "is not signed"},
		"time in another item":                   {func(s *signature.Scheme) { s.Timestamp = at("item:t", 0) }, "has none beside it"},
		"time in the method":                     {func(s *signature.Scheme) { s.Timestamp = at("method", 0) }, "no place for a time"},
		"negative tolerance":                     {func(s *signature.Scheme) { s.Timestamp = at("json:t", 0); s.Timestamp.Tolerance = -time.Second }, "negative"},
		"unsigned digest of the body":            {func(s *signature.Scheme) { s.Body = &signature.BodyDigest{From: signature.MustRef("header:Digest")} }, "is not signed"},
		"signature that covers itself in JSON":   {func(s *signature.Scheme) { s.Signature.In = in("json:sig") }, "the signature itself"},
		"signature that covers itself in a form": {func(s *signature.Scheme) { s.Signature.In, s.Message = in("form:sig"), text("{sorted_form}") }, "the signature itself"},
		"signature that covers itself in a URL":  {func(s *signature.Scheme) { s.Signature.In, s.Message = in("query:sig"), text("{url}{body}") }, "the signature itself"},
		"plain HMAC":                             {func(s *signature.Scheme) { s.Encoding = signature.Plain }, "only a token"},
		"token with a message":                   {func(s *signature.Scheme) { s.Method = signature.Token }, "a token signs nothing"},
		"keys without a separator":               {func(s *signature.Scheme) { s.Signature.Assign = "=" }, "need a separator"},
		"skip without a separator":               {func(s *signature.Scheme) { s.Signature.Skip = 1 }, "need a separator"},
		"item without assign":                    {func(s *signature.Scheme) { s.Signature.Separator, s.Signature.Item = ",", "v1" }, "needs what separates"},
		"keys and places":                        {func(s *signature.Scheme) { s.Signature = pairs("X", "v1"); s.Signature.Skip = 1 }, "not both"},
		"condition on the body":                  {func(s *signature.Scheme) { s.When = &signature.Condition{From: signature.MustRef("body")} }, "which scheme"},
		"prefixed without a prefix":              {func(s *signature.Scheme) { s.Key.Prefixed = true }, "none is named"},
		"another method":                         {func(s *signature.Scheme) { s.Method = 99 }, "none of those there are"},
		"another digest":                         {func(s *signature.Scheme) { s.Digest = -1 }, "none of those there are"},
		"another encoding":                       {func(s *signature.Scheme) { s.Encoding = 9 }, "none of those there are"},
		"another key form":                       {func(s *signature.Scheme) { s.Key.Form = 9 }, "none of those there are"},
		"another unit":                           {func(s *signature.Scheme) { s.Timestamp = at("json:t", 9) }, "none of those there are"},
		"another body digest": {func(s *signature.Scheme) {
			s.Body = &signature.BodyDigest{From: signature.MustRef("query:d"), Digest: 9}
		}, "none of those there are"},
	}
	for name, test := range tests {
		s := signature.Scheme{Name: "test", Signature: signature.Layout{In: in("header:X-A")}, Message: bodyOnly}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		test.change(&s)
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v; want %q", name, err, test.want)
		}
	}
}
