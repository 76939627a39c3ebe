package stream

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// EmbeddedOptions configure a JetStream server in this process.
type EmbeddedOptions struct {
	// Dir is the folder of the streams. A lock ensures that only one server uses it, because two
	// would corrupt it.
	Dir string
	// Port is a port on 127.0.0.1; 0 chooses a free one.
	Port int
	// Password protects the listener from other users of the machine; the user name is "postern".
	Password string
	// MaxBytes bounds the store on disk.
	MaxBytes int64
}

// Embedded is a running JetStream server in this process.
type Embedded struct {
	server *server.Server
	lock   *os.File
	url    string
}

// StartEmbedded starts the server and waits until it accepts connections.
func StartEmbedded(ctx context.Context, o EmbeddedOptions) (*Embedded, error) {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("create %s: %w", o.Dir, err)
	}
	lock, err := os.OpenFile(filepath.Join(o.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", o.Dir, err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%s is in use by another postern: stop that one or choose another "+
			"folder: %w", o.Dir, err), lock.Close())
	}
	port := o.Port
	if port == 0 {
		port = server.RANDOM_PORT
	}
	ns, err := server.NewServer(&server.Options{
		ServerName: "postern", Host: "127.0.0.1", Port: port, Username: "postern", Password: o.Password,
		NoSigs: true, NoLog: true, JetStream: true, StoreDir: o.Dir, JetStreamMaxMemory: 64 << 20,
		JetStreamMaxStore: o.MaxBytes, MaxPayload: 1 << 20,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create embedded nats: %w", err), lock.Close())
	}
	e := &Embedded{server: ns, lock: lock}
	go ns.Start()
	for deadline := time.Now().Add(10 * time.Second); !ns.ReadyForConnections(100 * time.Millisecond); {
		if ctx.Err() != nil || time.Now().After(deadline) {
			e.Stop()
			return nil, fmt.Errorf("embedded nats in %s did not start on port %d within 10 s: is the port in use?",
				o.Dir, o.Port)
		}
	}
	u := url.URL{Scheme: "nats", Host: ns.Addr().String()}
	if o.Password != "" {
		u.User = url.UserPassword("postern", o.Password)
	}
	e.url = u.String()
	return e, nil
}

// URL returns the address for clients, including the password.
func (e *Embedded) URL() string { return e.url }

// Stop ends the server and unlocks its folder.
func (e *Embedded) Stop() {
	e.server.Shutdown()
	e.server.WaitForShutdown()
	_ = e.lock.Close()
}
