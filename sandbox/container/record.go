package container

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
)

// runDir, below the state directory, has one directory for each running
// sandbox, named by its id.
const runDir = "run"

const recordFile = "host.json"

// record says which host a sandbox belongs to and what of it outlives a host
// that was killed: only its control groups do. Mounts go with the mount
// namespace, processes with the parent thread.
type record struct {
	Boot   string   `json:"boot"`   // the kernel's id of this boot
	Pid    int      `json:"pid"`    // of the host
	Start  uint64   `json:"start"`  // its start, in clock ticks after boot, since pids come again
	Groups []string `json:"groups"` // control group directories that may have been made
}

// ownRecord is the record of this process, without groups.
func ownRecord() (record, error) {
	boot, err := bootID()
	if err != nil {
		return record{}, err
	}
	start, err := startTime(os.Getpid())
	if err != nil {
		return record{}, err
	}
	return record{Boot: boot, Pid: os.Getpid(), Start: start}, nil
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
	return strconv.ParseUint(f[19], 10, 64)
}

// alive tells whether the host of the record still runs.
func (r record) alive(boot string) bool {
	if r.Boot != boot {
		return false
	}
	start, err := startTime(r.Pid)
	return err == nil && start == r.Start
}

func writeRecord(dir string, r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	// No fsync: after a power cut the control groups are gone as well.
	if err := os.WriteFile(filepath.Join(dir, recordFile), b, 0o600); err != nil {
		return errors.Join(fmt.Errorf("run record: %w", err), os.RemoveAll(dir))
	}
	return nil
}

// maxRecord bounds what is read of a record.
const maxRecord = 64 << 10

func readRecord(dir string) (record, error) {
	var r record
	info, err := os.Stat(filepath.Join(dir, recordFile))
	if err != nil {
		return r, err
	}
	if info.Size() > maxRecord {
		return r, fmt.Errorf("run record of %d bytes is over the limit of %d", info.Size(), maxRecord)
	}
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("run record %s: %w", dir, err)
	}
	return r, nil
}
