package container

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
)

// runDir, below the state directory, has one directory for each running
// sandbox, named by its id.
const runDir = "run"

const (
	recordFile  = "host.json"
	programFile = "program.json" // the processID of the sandbox's first process, once it has one
)

// record says which host a sandbox belongs to and what of it may outlive a
// host that was killed: its control groups do, and a program that has taken
// back the wish to die with the host. Mounts go with the mount namespace.
type record struct {
	Boot   string    `json:"boot"` // the kernel's id of this boot
	Host   processID `json:"host"`
	Groups []string  `json:"groups"` // control group directories that may have been made
}

// processID names a process for good.
type processID struct {
	Pid   int    `json:"pid"`
	Start uint64 `json:"start"` // in clock ticks after boot, since pids come again
}

// identify names a process that runs.
func identify(pid int) (processID, error) {
	start, err := startTime(pid)
	return processID{pid, start}, err
}

// runs tells whether it still does.
func (p processID) runs() bool {
	now, err := identify(p.Pid)
	return err == nil && now == p
}

// ownRecord is the record of this process, without groups.
func ownRecord() (record, error) {
	boot, err := bootID()
	if err != nil {
		return record{}, err
	}
	self, err := identify(os.Getpid())
	return record{Boot: boot, Host: self}, err
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// startTime is field 22 of /proc/pid/stat; the name in parentheses may hold
// anything, so fields are counted from the last parenthesis.
func startTime(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read start time: %w", err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 20 {
		return 0, fmt.Errorf("stat of %d has %d fields", pid, len(f))
	}
	// One that has ended stays in the table until it is waited for, which the
	// first process of many a container never does.
	if f[0] == "Z" || f[0] == "X" {
		return 0, fmt.Errorf("process %d has ended", pid)
	}
	return strconv.ParseUint(f[19], 10, 64)
}

// alive tells whether the host of the record still runs.
func (r record) alive(boot string) bool { return r.Boot == boot && r.Host.runs() }

func writeRecord(dir string, r record) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	if err := writeJSON(filepath.Join(dir, recordFile), r); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return nil
}

func writeJSON(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("run record: %w", err)
	}
	// No fsync: after a power cut all that it names is gone as well.
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return fmt.Errorf("run record: %w", err)
	}
	return nil
}

// maxRecord bounds what is read of a record.
const maxRecord = 64 << 10

func readJSON(path string, v any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("run record %s: %w", path, err)
	}
	return nil
}
