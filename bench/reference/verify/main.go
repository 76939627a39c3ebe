// Command verify is the ceiling of HTTP: the server and the verification, and no store.
package main

import (
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/bench/reference/refer"
)

func main() {
	secret := []byte(os.Getenv("SECRET"))
	err := refer.Serve(func(c echo.Context) error {
		body, err := refer.Read(c.Request())
		if err != nil {
			return c.NoContent(http.StatusBadRequest)
		}
		if !refer.Verified(c.Request().Header.Get("Stripe-Signature"), secret, body, time.Now()) {
			return c.NoContent(http.StatusUnauthorized)
		}
		return c.JSONBlob(http.StatusOK, []byte(`{"received":true}`))
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "verify:", err)
		os.Exit(1)
	}
}
