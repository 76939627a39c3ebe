package deploy_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

const postgresWithin = 60 * time.Second

// hba admits the administrator through the socket, and all others only with a password.
const hba = "local all postgres,admin1 trust\nlocal all all scram-sha-256\nhost all all 127.0.0.1/32 scram-sha-256\n"

// pgServer is a PostgreSQL with deploy/postgresql.conf.
type pgServer struct {
	socket string
	port   int
}

// startPostgres starts a new server with only our configuration file, as compose.yaml does.
func startPostgres(t *testing.T) *pgServer {
	t.Helper()
	root, err := os.MkdirTemp("", "postern-deploy-") // t.TempDir's parents are closed to the server's account
	testkit.Must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	testkit.Must(t, os.Chmod(root, 0o711))
	dir := filepath.Join(root, "c")
	made, err := postgres.StartCluster(t.Context(), postgres.ClusterOptions{Dir: dir, Fast: true})
	if err != nil {
		t.Fatalf("make a cluster (install what it needs: make prerequisites): %v", err)
	}
	testkit.Must(t, made.Stop(t.Context()))
	data := filepath.Join(dir, "data")
	conf := filepath.Join(root, "postgresql.conf")
	write(t, conf, read(t, deployed("postgresql.conf")))
	write(t, filepath.Join(data, "pg_hba.conf"), hba)
	s := &pgServer{socket: dir, port: freePort(t)}
	cmd := exec.Command(serverProgram(t, data), "-D", data, "-c", "config_file="+conf, "-c",
		"listen_addresses=127.0.0.1", "-p", strconv.Itoa(s.port), "-c", "unix_socket_directories="+dir)
	s.run(t, cmd, data)
	return s
}

// run runs the server as the account that owns its data, until the test ends.
func (s *pgServer) run(t *testing.T, cmd *exec.Cmd, data string) {
	t.Helper()
	info, err := os.Stat(data)
	testkit.Must(t, err)
	owner := info.Sys().(*syscall.Stat_t)
	cmd.Dir, cmd.Env = data, []string{"LC_ALL=C", "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: owner.Uid, Gid: owner.Gid}
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	testkit.Must(t, err)
	cmd.Stdout, cmd.Stderr = log, log
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // the server may have ended already
		_ = cmd.Wait()                         // its output is logged below
		_ = log.Close()
		if t.Failed() {
			t.Log(read(t, log.Name()))
		}
	})
	testkit.Eventually(t, postgresWithin, func() error {
		conn, err := pgx.Connect(t.Context(), s.admin("postgres"))
		if err != nil {
			return fmt.Errorf("%w: %s", err, read(t, log.Name()))
		}
		return conn.Close(t.Context())
	})
}

// admin returns the administrator's URL of a database.
func (s *pgServer) admin(database string) string {
	return fmt.Sprintf("postgres:///%s?host=%s&port=%d&user=postgres", database, s.socket, s.port)
}

func (s *pgServer) exec(t *testing.T, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.admin("postgres"))
	testkit.Must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	testkit.ExecSQL(t, conn, sql)
}

// login returns a daemon's URL of the database: TCP, with the password in a file.
func (s *pgServer) login(name, passfile string) string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/postern?passfile=%s", name, s.port, passfile)
}

// serverProgram returns the server program of the version that created the data.
func serverProgram(t *testing.T, data string) string {
	t.Helper()
	program := filepath.Join("/usr/lib/postgresql", strings.TrimSpace(read(t, filepath.Join(data, "PG_VERSION"))),
		"bin/postgres")
	if _, err := os.Stat(program); err == nil {
		return program
	}
	program, err := exec.LookPath("postgres")
	if err != nil {
		t.Fatalf("no PostgreSQL server is installed (make prerequisites): %v", err)
	}
	return program
}

// freePort returns a free port that is neither in the range of ephemeral ports nor in that of
// testkit's servers, so that no other program takes it meanwhile.
func freePort(t *testing.T) (port int) {
	t.Helper()
	const first, ports = 30_000, 2_700
	testkit.Eventually(t, postgresWithin, func() error {
		port = first + rand.IntN(ports)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return err
		}
		return l.Close()
	})
	return port
}

// PostgreSQL starts with only deploy/postgresql.conf. An administrator that is no superuser, as in
// a managed service, runs deploy/logins.sql. With these logins and their passwords, the schema is
// migrated and each part runs. No login has more privileges than it needs.
func TestPostgres_logins_haveOnlyTheirPrivileges(t *testing.T) {
	t.Parallel()
	secrets, s := allSecrets(t), startPostgres(t)
	t.Run("settings", s.checkSettings)
	s.exec(t, "DROP DATABASE postern") // an administrator creates this database in production
	s.exec(t, "CREATE ROLE admin1 LOGIN CREATEROLE CREATEDB")
	logins := func(administrator string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "psql", "--no-psqlrc", "--quiet", "--dbname",
			strings.Replace(s.admin("postgres"), "user=postgres", "user="+administrator, 1),
			"--set", "secrets="+secrets, "--file", deployed("logins.sql"))
		runs(t, cmd)
	}
	logins("admin1")
	file := func(name string) string { return filepath.Join(secrets, "pgpass_"+name) }
	for _, administrator := range []string{"admin1", "postgres"} { // again, as after an upgrade
		if _, err := postgres.Migrate(t.Context(), s.login("migrator1", file("migrator"))); err != nil {
			t.Fatal(err)
		}
		logins(administrator)
	}
	for _, l := range []struct{ login, file, takes, mustNot string }{
		{"gateway1", "gateway", "postern_gateway", "postern_processor"},
		{"gateway1", "gateway", "postern_operator", "postern_maintenance"},
		{"processor1", "processor", "postern_processor", "postern_gateway"},
		{"processor1", "processor", "postern_operator", "postern_maintenance"},
		{"keeper1", "processor", "postern_maintenance", "postern_gateway"},
		{"operator1", "operator", "postern_operator", "postern_processor"},
	} {
		url := s.login(l.login, file(l.file))
		if err := connects(t.Context(), url, l.takes); err != nil {
			t.Errorf("%s: %v", l.login, err)
		}
		if err := connects(t.Context(), url, l.mustNot); postgres.Code(err) != "42501" {
			t.Errorf("%s as %s: %v, want a rejection", l.login, l.mustNot, err)
		}
	}
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: s.login("operator1", file("operator")),
		Role: "postern_operator"})
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	report := doctor.Examine(t.Context(), doctor.Options{Pool: pool})
	for _, c := range report.Checks {
		if strings.HasPrefix(c.Found, "check failed") {
			t.Errorf("the doctor as operator1: %s: %s", c.Name, c.Found)
		}
	}
	if err := connects(t.Context(), s.login("gateway1", file("operator")), ""); postgres.Code(err) != "28P01" {
		t.Errorf("with the password file of another login: %v, want a rejection", err)
	}
}

func connects(ctx context.Context, url, role string) error {
	pool, err := postgres.Connect(ctx, postgres.Options{URL: url, Role: role, MaxConns: 1})
	if err == nil {
		pool.Close()
	}
	return err
}

// checkSettings checks that every setting of the file is in force, and that the limits are
// sufficient for our defaults.
func (s *pgServer) checkSettings(t *testing.T) {
	conn, err := pgx.Connect(t.Context(), s.admin("postgres"))
	testkit.Must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	value := map[string]int{}
	for line := range strings.Lines(read(t, deployed("postgresql.conf"))) {
		line, _, _ = strings.Cut(line, "#")
		name, want, found := strings.Cut(line, "=")
		if !found {
			continue
		}
		name, want = strings.TrimSpace(name), strings.TrimSpace(want)
		var same bool
		var number string
		// The server itself compares the values, because units differ.
		err := conn.QueryRow(t.Context(), `SELECT s.setting = f.setting OR current_setting(s.name) = $2, s.setting
			FROM pg_settings s JOIN pg_file_settings f USING (name) WHERE s.name = $1 AND f.applied
				AND f.error IS NULL`, name, want).Scan(&same, &number)
		if err != nil || !same {
			t.Errorf("%s = %s is not in force: %s (%v)", name, want, number, err)
		}
		value[name], _ = strconv.Atoi(number) // not all are numbers
	}
	var c config.Config
	c.Complete()
	const daemons, adminPool, keeperPool, runs, reserved = 2, 4, 2, 6, 3
	if need := daemons*(2*(c.Database.MaxConnections+adminPool)+keeperPool+runs*(c.Processor.Workers+1)+2) +
		reserved; value["max_connections"] < 2*need {
		t.Errorf("max_connections is %d; two gateways and two processors need %d, and as many during an upgrade",
			value["max_connections"], need)
	}
	most := 8 // processors
	if table, need := value["max_locks_per_transaction"]*value["max_connections"],
		most*c.Processor.Batch*c.Processor.Workers; table < 2*need {
		t.Errorf("the lock table has %d entries; %d processors alone may hold %d", table, most, need)
	}
}
