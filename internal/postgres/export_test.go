package postgres

import "syscall"

// MaxMessage is the longest message, in bytes.
const MaxMessage = maxMessage

// Buffer returns the buffer for parameters.
func (p *Params) Buffer() []byte { return p.buf }

// Internal functions and values for tests.
var (
	BindLength       = bindLength
	CheckVersion     = checkVersion
	PoolConfig       = poolConfig
	SessionConfig    = sessionConfig
	FindInstallation = findInstallation
	SocketDir        = socketDir
)

// ServerCredential is the account of a private cluster's server; nil: that of this process.
func ServerCredential() (*syscall.Credential, error) {
	acc, err := serverAccount()
	return acc.credential(), err
}
