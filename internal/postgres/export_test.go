package postgres

// MaxMessage is the longest message, in bytes.
const MaxMessage = maxMessage

// Buffer is where parameters are written.
func (p *Params) Buffer() []byte { return p.buf }

// What the tests look into.
var (
	BindLength       = bindLength
	CheckVersion     = checkVersion
	PoolConfig       = poolConfig
	FindInstallation = findInstallation
	SocketDir        = socketDir
)
