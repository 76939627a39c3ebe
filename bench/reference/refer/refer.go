// Package refer is what the references share: Stripe's signature, the HTTP server, and how a program says that it is ready.
package refer

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	_ "net/http/pprof" // on the address that PPROF names
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/labstack/echo/v4"
)

// MaxBody is the largest body taken, in bytes.
const MaxBody = 4 << 20

// Read reads a request's body into memory of its own.
func Read(req *http.Request) ([]byte, error) {
	if req.ContentLength > MaxBody {
		return nil, errors.New("body too large")
	}
	if req.ContentLength < 0 {
		return io.ReadAll(io.LimitReader(req.Body, MaxBody))
	}
	body := make([]byte, req.ContentLength)
	_, err := io.ReadFull(req.Body, body)
	return body, err
}

// Verified tells whether a Stripe-Signature is a secret's over a body, made within five minutes of now.
func Verified(header string, secret, body []byte, now time.Time) bool {
	var stamp, want string
	for part := range strings.SplitSeq(header, ",") {
		switch key, value, _ := strings.Cut(part, "="); key {
		case "t":
			stamp = value
		case "v1":
			want = value
		}
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return false
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(stamp))
	mac.Write([]byte{'.'})
	mac.Write(body)
	given, err := hex.DecodeString(want)
	return err == nil && hmac.Equal(given, mac.Sum(nil))
}

// Serve serves POST /webhooks/:source on a free port of loopback until the process is asked to stop. It says on standard error where.
func Serve(handle echo.HandlerFunc) error {
	e := echo.New()
	e.POST("/webhooks/:source", handle)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: e, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, WriteTimeout: 25 * time.Second, IdleTimeout: 2 * time.Minute}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	if err := Ready(l.Addr().String()); err != nil {
		return err
	}
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Ready says on standard error that the program serves at an address. Where PPROF names another (127.0.0.1:0), profiles are served there.
func Ready(address string) error {
	said := map[string]string{"msg": "ready", "ingest": address}
	if at := os.Getenv("PPROF"); at != "" {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		go func() { _ = http.Serve(l, nil) }() // as long as the process lives
		said["admin"] = l.Addr().String()
	}
	return json.NewEncoder(os.Stderr).Encode(said)
}
