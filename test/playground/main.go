// Command playground lets a person try reconciliation without an account. It runs a Postern
// instance and fake APIs of Stripe and Shopify on loopback, and changes the fakes on request.
// docs/tutorial/3-survive-a-bad-day.md has the commands, and test/documents runs them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// usage returns the help text. It names the program as it was started.
func usage() string { return strings.ReplaceAll(usageText, "PROGRAM", os.Args[0]) }

const usageText = `Try reconciliation without an account: a Postern instance, and fake APIs of Stripe and Shopify.

  PROGRAM                         start them; Ctrl-C ends all
  PROGRAM SOURCE COMMAND VALUE    change a fake, in another terminal and the same folder

SOURCE is stripe or shop. The commands:

  create 9            create 9 objects, with webhooks
  change 5            change 5 objects, with webhooks
  change-silently 5   change 5 objects without webhooks
  delete-silently 2   delete 2 objects without webhooks
  lose-every 3        lose every third webhook from now on; 0: none
  delay-lists 3s      delay the responses to list requests by 3 s from now on; 0s: not at all
  answer-429 4        answer the next 4 API requests with 429 Too Many Requests
`

// The playground's folder, below the current one, and the file in it that has the address of the
// control server.
const dir, controlFile = ".playground", dir + "/control"

func main() {
	err := fmt.Errorf("want SOURCE COMMAND VALUE\n\n%s", strings.TrimSpace(usage()))
	switch len(os.Args) {
	case 1:
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		err = run(ctx, os.Stdout)
		stop()
	case 2: // -h, help
		_, err = fmt.Print(usage())
	case 4:
		err = request(strings.Join(os.Args[1:], " "), os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "playground:", err)
		os.Exit(1)
	}
}

// request sends a command to the playground that runs, and prints its response.
func request(command string, out io.Writer) error {
	address, err := os.ReadFile(controlFile)
	if err != nil {
		return fmt.Errorf("find the playground: %w; start it in this folder: %s", err, os.Args[0])
	}
	text, err := post(string(address), http.Header{}, strings.NewReader(command))
	if err == nil {
		_, err = io.WriteString(out, text)
	}
	return err
}

// post sends a body and returns that of the response. A response other than 200 is an error.
func post(address string, header http.Header, body io.Reader) (string, error) {
	r, err := http.NewRequest(http.MethodPost, address, body)
	if err != nil {
		return "", err
	}
	r.Header = header
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	if err != nil {
		return "", fmt.Errorf("%w; does the playground run?", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(strings.TrimSpace(string(text)))
	}
	return string(text), err
}
