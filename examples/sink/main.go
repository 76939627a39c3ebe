// Command sink simulates the destinations of the examples, each under its own path: mail,
// accounting, a store, or any other name. It executes requests, counts them, and fails on request.
// README.md describes its commands.
package main

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/sink"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:9090", "address to listen on; port 0 picks a free one")
	ignores := flag.String("ignores", "", "destinations that ignore Idempotency-Key, e.g. mail,store")
	smtp := flag.String("smtp", "", "address of a mail server that it also runs; port 0 picks a free one")
	flag.Parse()
	if err := run(*listen, *smtp, strings.Split(*ignores, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "sink:", err)
		os.Exit(1)
	}
}

func run(listen, smtp string, ignores []string) error {
	handler := &sink.Server{IgnoresKeys: ignores}
	ended := make(chan error, 2)
	if smtp != "" {
		l, err := net.Listen("tcp", smtp)
		if err != nil {
			return err
		}
		fmt.Printf("takes mail on %s\n", l.Addr())
		go func() { ended <- handler.ServeMail(l) }()
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	fmt.Printf("listening on http://%s\n", l.Addr())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	go func() { ended <- server.Serve(l) }()
	return <-ended
}
