// Command natsd runs a NATS server as a process, for tests that kill and stop it: natsd -c FILE.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/nats-io/nats-server/v2/server"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "natsd:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("natsd", flag.ContinueOnError)
	file := flags.String("c", "", "configuration `FILE`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o, err := server.ProcessConfigFile(*file)
	if err != nil {
		return err
	}
	ns, err := server.NewServer(o)
	if err != nil {
		return err
	}
	ns.ConfigureLogger()
	if err := server.Run(ns); err != nil {
		return err
	}
	ns.WaitForShutdown()
	return nil
}
