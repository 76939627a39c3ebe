// Command receiver receives the changes that Postern forwards, as
// docs/how-to/receive-changes-by-webhook.md explains.
package main

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// verify checks that a message is signed (Standard Webhooks) and at most five minutes old.
func verify(key []byte, h http.Header, body []byte) bool {
	at, err := strconv.ParseInt(h.Get("webhook-timestamp"), 10, 64)
	if err != nil || time.Since(time.Unix(at, 0)).Abs() > 5*time.Minute {
		return false
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "%s.%d.%s", h.Get("webhook-id"), at, body)
	want := "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	for signature := range strings.FieldsSeq(h.Get("webhook-signature")) { // one for each secret
		if hmac.Equal([]byte(signature), []byte(want)) {
			return true
		}
	}
	return false
}

func main() {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(os.Getenv("FORWARD_SECRET"), "whsec_"))
	if err != nil || len(key) < 24 {
		log.Fatal("FORWARD_SECRET is not a secret of Standard Webhooks")
	}
	var mu sync.Mutex
	highest := map[[4]string]int64{} // store it with your data, in the same transaction
	http.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil || !verify(key, r.Header, body) {
			http.Error(w, "the signature is not valid", http.StatusUnauthorized)
			return
		}
		var c struct { // a part of the message
			Source, Account string
			Type            string `json:"object_type"`
			ID              string `json:"object_id"`
			Revision        int64
			Redacted        bool
			State           json.RawMessage
		}
		if err := json.Unmarshal(body, &c); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		switch object := [4]string{c.Source, c.Account, c.Type, c.ID}; {
		case c.Revision <= highest[object]: // a repetition, or older than what is known
		case c.Redacted:
			fmt.Println("erase", c.Type, c.ID, "revision", c.Revision)
			highest[object] = c.Revision
		default:
			fmt.Println("store", c.Type, c.ID, "revision", c.Revision) // c.State
			highest[object] = c.Revision
		}
	})
	listener, err := net.Listen("tcp", cmp.Or(os.Getenv("LISTEN"), "127.0.0.1:0"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("listening on http://%s\n", listener.Addr())
	log.Fatal(http.Serve(listener, nil))
}
