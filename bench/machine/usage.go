package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of processor time in /proc.
const tick = 10 * time.Millisecond

// stat reads fields of /proc/PID/stat after the program's name, which may hold anything.
func stat(pid int) ([]string, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return nil, err
	}
	text := string(b)
	return strings.Fields(text[strings.LastIndexByte(text, ')')+1:]), nil
}

// ticks adds fields of a stat, numbered as after the name.
func ticks(fields []string, which ...int) time.Duration {
	var sum time.Duration
	for _, i := range which {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err == nil {
			sum += time.Duration(n) * tick
		}
	}
	return sum
}

// The places of user and system time, of the process and of its children that ended, and of the
// parent.
const (
	parent = 1
	user   = 11
	system = 12
	kidsU  = 13
	kidsS  = 14
)

// CPU is the processor time that a process has used.
func (p *Process) CPU() (time.Duration, error) {
	f, err := stat(p.PID())
	if err != nil {
		return 0, fmt.Errorf("read what %s used: %w", p.Name, err)
	}
	return ticks(f, user, system), nil
}

// familyCPU is what a process and its children have used, those that ended included.
func familyCPU(pid int) (time.Duration, error) {
	f, err := stat(pid)
	if err != nil {
		return 0, err
	}
	sum := ticks(f, user, system, kidsU, kidsS)
	kids, err := children(pid)
	if err != nil {
		return 0, err
	}
	for _, kid := range kids {
		if f, err := stat(kid); err == nil { // it may have ended just now
			sum += ticks(f, user, system)
		}
	}
	return sum, nil
}

func children(pid int) ([]int, error) {
	found, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var kids []int
	for _, dir := range found {
		kid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if f, err := stat(kid); err == nil && f[parent] == strconv.Itoa(pid) {
			kids = append(kids, kid)
		}
	}
	return kids, nil
}

// ResetPeak forgets the most memory that a process has had so far.
func (p *Process) ResetPeak() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", p.PID()), []byte("5"), 0)
}

// Peak is the most memory that a process has had resident since ResetPeak, in bytes.
func (p *Process) Peak() (int64, error) {
	return field(fmt.Sprintf("/proc/%d/status", p.PID()), "VmHWM:")
}

// Resident is the memory that a process has resident now, in bytes.
func (p *Process) Resident() (int64, error) {
	return field(fmt.Sprintf("/proc/%d/status", p.PID()), "VmRSS:")
}

// familyMemory is the memory of a process and its children, what they share counted once, in bytes.
func familyMemory(pid int) (int64, error) {
	kids, err := children(pid)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, one := range append(kids, pid) {
		// it may have ended just now
		if n, err := field(fmt.Sprintf("/proc/%d/smaps_rollup", one), "Pss:"); err == nil {
			sum += n
		}
	}
	return sum, nil
}

// field is a number of kilobytes in a file of /proc, in bytes.
func field(file, name string) (int64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, name)
}

// Usage is what everything has cost at a moment.
type Usage struct {
	At         time.Time
	PostgreSQL time.Duration
	NATS       time.Duration
	Processes  []time.Duration
	// WAL is how many bytes PostgreSQL has logged.
	WAL int64
}

// Usage reads what PostgreSQL, NATS and some processes have used.
func (m *Machine) Usage(ctx context.Context, ps ...*Process) (u Usage, err error) {
	u.At = time.Now()
	if err := m.Admin.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").Scan(&u.WAL); err != nil {
		return u, err
	}
	if u.PostgreSQL, err = familyCPU(m.pgPID); err != nil {
		return u, err
	}
	if u.NATS, err = m.nats.CPU(); err != nil {
		return u, err
	}
	for _, p := range ps {
		t, err := p.CPU()
		if err != nil {
			return u, err
		}
		u.Processes = append(u.Processes, t)
	}
	return u, nil
}

// Memory is what PostgreSQL has resident now and the most that NATS had since the last ResetMemory,
// in bytes.
func (m *Machine) Memory() (postgreSQL, nats int64, err error) {
	if postgreSQL, err = familyMemory(m.pgPID); err != nil {
		return 0, 0, err
	}
	nats, err = m.nats.Peak()
	return postgreSQL, nats, err
}

// ResetMemory forgets the most memory that NATS has had.
func (m *Machine) ResetMemory() error { return m.nats.ResetPeak() }
