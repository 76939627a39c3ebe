package postgres

import (
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// MaxMessage is the longest message, in bytes.
const MaxMessage = maxMessage

// Buffer is where parameters are written.
func (p *Params) Buffer() []byte { return p.buf }

// What the tests look into.
var (
	BindLength       = bindLength
	CheckVersion     = checkVersion
	PoolConfig       = poolConfig
	SessionConfig    = sessionConfig
	FindInstallation = findInstallation
	SocketDir        = socketDir
)

// ServerCredential is the account that a private cluster's server runs as; nil: that of this process.
func ServerCredential() (*syscall.Credential, error) {
	acc, err := serverAccount()
	return acc.credential(), err
}

// Hasten has the calls of a session looked at after another time, and asked about as often.
func Hasten(conn *pgx.Conn, every time.Duration) {
	l := linkOf(conn)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.after, l.every = every, every
}
