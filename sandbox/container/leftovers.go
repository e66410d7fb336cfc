package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Leftovers is what CollectLeftovers found and did.
type Leftovers struct {
	Collected []string // sandboxes of dead hosts, now gone
	Running   int      // sandboxes of hosts that still run, left alone
}

// unfinishedGrace is how long a run directory without a record may be one
// that its host is just writing.
const unfinishedGrace = time.Minute

// CollectLeftovers removes what hosts that were killed have left behind in
// stateDir: their sandboxes' control groups, with whatever may still be in
// them, and their run directories. It is safe to call while other hosts run.
// It goes on after an error and gives all of them.
func CollectLeftovers(ctx context.Context, stateDir string) (Leftovers, error) {
	var out Leftovers
	dir := filepath.Join(stateDir, runDir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return out, nil
	}
	if err != nil {
		return out, fmt.Errorf("look for leftovers: %w", err)
	}
	boot, err := bootID()
	if err != nil {
		return out, err
	}
	var errs []error
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return out, errors.Join(append(errs, err)...)
		}
		switch gone, err := collect(ctx, filepath.Join(dir, e.Name()), boot); {
		case err != nil:
			errs = append(errs, fmt.Errorf("leftover %q: %w", e.Name(), err))
		case gone:
			out.Collected = append(out.Collected, e.Name())
		default:
			out.Running++
		}
	}
	return out, errors.Join(errs...)
}

// collect removes one sandbox if its host is dead.
func collect(ctx context.Context, dir, boot string) (gone bool, err error) {
	var rec record
	if err := readJSON(filepath.Join(dir, recordFile), &rec); err != nil {
		// Killed between making the directory and writing the record, which
		// comes before anything else is made.
		info, serr := os.Stat(dir)
		if errors.Is(serr, os.ErrNotExist) {
			return true, nil
		}
		if serr == nil && time.Since(info.ModTime()) < unfinishedGrace {
			return false, nil
		}
		return true, os.RemoveAll(dir)
	}
	if rec.alive(boot) {
		return false, nil
	}
	if rec.Boot == boot {
		if err := killProgram(ctx, filepath.Join(dir, programFile)); err != nil {
			return false, err
		}
		for _, g := range rec.Groups {
			// A record is ours alone to write (the directory is 0700); the
			// check keeps a damaged one from naming somebody else's group.
			if filepath.Base(g) != filepath.Base(dir) || !strings.HasPrefix(filepath.Base(g), idPrefix) {
				return false, fmt.Errorf("record names the control group %q", g)
			}
			if err := removeGroup(ctx, g); err != nil {
				return false, err
			}
		}
	}
	return true, os.RemoveAll(dir)
}

// killProgram ends a sandbox's first process, and so all of it, if it is still
// the one that was written down.
func killProgram(ctx context.Context, file string) error {
	var program processID
	if readJSON(file, &program) != nil {
		// The host was killed before it had one, or while writing it down. So
		// it was not released and could not outlive the host.
		return nil
	}
	// Opened first and compared then: the file cannot become another process.
	fd, err := unix.PidfdOpen(program.Pid, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(fd)
	if !program.runs() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && err != unix.ESRCH {
		return fmt.Errorf("kill process %d, which outlived its host: %w", program.Pid, err)
	}
	for program.runs() {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, 10); err != nil && err != unix.EINTR {
			return os.NewSyscallError("poll", err)
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("process %d does not end: %w", program.Pid, err)
		}
		if poll[0].Revents != 0 {
			break // ended; whoever took it over collects it
		}
	}
	return nil
}
