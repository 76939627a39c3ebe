package postgres

// What the tests look into.
var (
	CheckVersion     = checkVersion
	PoolConfig       = poolConfig
	FindInstallation = findInstallation
	SocketDir        = socketDir
)
