package signature_test

import (
	"crypto/sha256"
	"encoding"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"testing"

	"github.com/postern-gateway/postern/internal/signature"
)

// extend goes on from a digest of size bytes: it returns what the hash has padded them with, and the
// digest of them, the padding and more. It needs no other knowledge of them.
func extend(t *testing.T, digest []byte, size int, more string) (padding, longer []byte) {
	t.Helper()
	padding = append([]byte{0x80}, make([]byte, (119-size%64)%64)...)
	padding = binary.BigEndian.AppendUint64(padding, uint64(size)*8)
	h := sha256.New()
	state := append([]byte("sha\x03"), digest...)
	state = append(state, make([]byte, sha256.BlockSize)...)
	state = binary.BigEndian.AppendUint64(state, uint64(size+len(padding)))
	if err := h.(encoding.BinaryUnmarshaler).UnmarshalBinary(state); err != nil {
		t.Fatal(err)
	}
	h.Write([]byte(more))
	return padding, h.Sum(nil)
}

func TestScheme_extendable_isWhatTakesAnExtendedBody(t *testing.T) {
	t.Parallel()
	const secret, body, more = "sixteen bytes of", "amount=1&to=shop", "&to=thief"
	for message, extendable := range map[string]bool{
		"{secret}{body}":         true,
		"{secret}:{body}":        true,
		"{body}{secret}":         false,
		"{secret}{body}{secret}": false,
	} {
		s := &signature.Scheme{Name: "hash", Method: signature.Hash, Signature: signature.Layout{In: in("header:X-S")}, Message: text(message)}
		if got := s.Extendable(); got != extendable {
			t.Errorf("%s: extendable is %t", message, got)
		}
		r := signature.Request{Header: http.Header{}, Body: []byte(body)}
		if err := s.Sign([]byte(secret), &r, r.ReceivedAt); err != nil {
			t.Fatal(err)
		}
		digest, err := hex.DecodeString(r.Header.Get("X-S"))
		if err != nil {
			t.Fatal(err)
		}
		taken := false
		for size := len(body); size < len(body)+2*len(secret)+8; size++ { // the attacker does not know the secret's length
			padding, longer := extend(t, digest, size, more)
			forged := signature.Request{Header: http.Header{"X-S": {hex.EncodeToString(longer)}}, Body: append([]byte(body+string(padding)), more...)}
			if _, err := s.Verify([][]byte{[]byte(secret)}, forged, 0); err == nil {
				taken = true
			}
		}
		if taken != extendable {
			t.Errorf("%s: an extended body is taken: %t, want %t", message, taken, extendable)
		}
	}
	or := &signature.Scheme{Method: signature.Hash, Message: text("{body}{secret}"), Or: []signature.Template{text("{secret}{body}")}}
	if !or.Extendable() {
		t.Error("another spelling of the message is passed over")
	}
}
