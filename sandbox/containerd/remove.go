package containerd

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
)

const (
	// ownerKey is the label by which a sandbox's snapshot, the first that is made
	// of it and the last that is removed, names the host process it belongs to:
	// boot id, process id and start time.
	ownerKey = "aspis.dev/host"
	// keepKey keeps the daemon from collecting what no container of its own names.
	keepKey = "containerd.io/gc.root"
)

func ownerLabel() (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	start, err := startTime(os.Getpid())
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s.%d.%s", strings.TrimSpace(string(boot)), os.Getpid(), start), nil
}

// stat gives the fields of /proc/pid/stat from the third on (state, parent, and
// so on). The name in parentheses before them may hold anything, so they are
// counted from the last parenthesis.
func stat(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, fmt.Errorf("look at process %d: %w", pid, err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return nil, fmt.Errorf("process %d has ended", pid)
	}
	return f, nil
}

// startTime is field 22, in clock ticks after boot.
func startTime(pid int) (string, error) {
	f, err := stat(pid)
	if err != nil {
		return "", err
	}
	return f[19], nil
}

// alive tells whether the host that a label names still runs.
func alive(label string) bool {
	f := strings.Split(label, ".")
	if len(f) != 3 {
		return false
	}
	pid, err := strconv.Atoi(f[1])
	if err != nil {
		return false
	}
	own, err := ownerLabel()
	if err != nil || !strings.HasPrefix(own, f[0]+".") {
		return false
	}
	start, err := startTime(pid)
	return err == nil && start == f[2]
}

// collect removes the sandboxes of hosts that were killed.
func (r *Runtime) collect(ctx context.Context) error {
	var dead []string
	err := r.client.SnapshotService(snapshotter).Walk(ctx, func(_ context.Context, s snapshots.Info) error {
		if owner, ours := s.Labels[ownerKey]; ours && !alive(owner) {
			dead = append(dead, s.Name)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for leftovers: %w", err)
	}
	var errs []error
	for _, id := range dead {
		if err := r.remove(ctx, id); err != nil {
			errs = append(errs, fmt.Errorf("leftover %q: %w", id, err))
			continue
		}
		errs = append(errs, os.RemoveAll(filepath.Join(r.opt.StateDir, id)))
	}
	return errors.Join(errs...)
}

// remove takes a sandbox out of the daemon, as far as it is there: its
// processes, its container and its snapshot.
func (r *Runtime) remove(ctx context.Context, id string) error {
	gone := func(err error) bool { return err == nil || errdefs.IsNotFound(err) }
	box, err := r.client.LoadContainer(ctx, id)
	if !gone(err) {
		return fmt.Errorf("find container: %w", err)
	}
	if err == nil {
		task, err := box.Task(ctx, nil)
		if !gone(err) {
			return fmt.Errorf("find process: %w", err)
		}
		if err == nil {
			if _, err := task.Delete(ctx, client.WithProcessKill); !gone(err) {
				return fmt.Errorf("end process: %w", err)
			}
		}
		if err := box.Delete(ctx); !gone(err) {
			return fmt.Errorf("remove container: %w", err)
		}
	}
	if err := r.client.SnapshotService(snapshotter).Remove(ctx, id); !gone(err) {
		return fmt.Errorf("remove snapshot: %w", err)
	}
	return nil
}

// checkStatic refuses a first stage that needs files which an image may not have.
func checkStatic(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("first stage: %w", err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("first stage %q: it is linked dynamically, and an image may not have what it needs", path)
		}
	}
	return nil
}
