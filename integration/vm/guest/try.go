package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/integration/vm/matrix"
)

const (
	bin    = "/usr/local/bin"
	aspis  = bin + "/aspis"
	repo   = "/tmp/shop"
	plain  = "/etc/aspis-plain/config.json"
	strict = "/etc/aspis-isolated/config.json"
)

// Bounds of one command, which the host's own bound on the machine is beyond.
const (
	commandTime = 3 * time.Minute
	testTime    = 4 * time.Minute
	maxOutput   = 256 << 10
	maxTail     = 16 << 10
)

// try runs everything in the job's control group.
func try(c matrix.Cell, r *matrix.Report) error {
	dirs, err := jobGroup(c)
	if err != nil {
		return err
	}
	if err := join(dirs); err != nil {
		return err
	}
	if c.Groups == matrix.V2ReadOnly {
		if err := unix.Mount("", groupRoot, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("make control groups read-only: %w", err)
		}
	}
	if err := makeRepo(c); err != nil {
		return err
	}
	// Once for nothing: on emulated processors a provider that is read from the
	// disk for the first time can take longer than a provider's start may.
	if _, err := run(c, commandTime, nil, aspis, "--config", plain, "--repo", repo, "check", "--base", "HEAD~1"); err != nil {
		return err
	}
	for _, q := range []struct {
		into *matrix.Command
		args []string
	}{
		{&r.Doctor, []string{"doctor", "--format", "json"}},
		{&r.Check, []string{"--config", plain, "--repo", repo, "check", "--base", "HEAD~1", "--format", "json"}},
		{&r.Require, []string{"--config", strict, "--repo", repo, "check", "--base", "HEAD~1", "--format", "json"}},
	} {
		if *q.into, err = run(c, commandTime, nil, aspis, q.args...); err != nil {
			return err
		}
	}
	for _, t := range c.Want.Tests {
		o, err := runTests(c, t)
		if err != nil {
			return err
		}
		r.Tests = append(r.Tests, o)
	}
	return nil
}

// makeRepo is a small real repository with a clean change, and configuration
// that requires isolation for it.
func makeRepo(c matrix.Cell) error {
	if err := os.Mkdir(repo, 0o755); err != nil {
		return err
	}
	if c.User {
		if err := os.Chown(repo, userID, userID); err != nil {
			return err
		}
	}
	const shop = `set -e
cd ` + repo + `
git init -q -b main .
git config user.name dev
git config user.email dev@example.org
echo 'print("shop")' >shop.py
git add -A
git commit -q -m "Start the shop"
echo 'print("open")' >>shop.py
git commit -q -am "Open the shop"`
	if cmd, err := run(c, commandTime, nil, "/bin/sh", "-c", shop); err != nil || cmd.Code != 0 {
		return errors.Join(fmt.Errorf("make a repository: %+v", cmd), err)
	}
	cfg, err := run(c, commandTime, nil, aspis, "policy", "init")
	if err != nil {
		return err
	}
	// Emulated processors are slow, and what is asked here is not how fast.
	text := strings.Replace(cfg.Stdout, `"version": "aspis-config/1",`, `"version": "aspis-config/1", "budgets": {"gateMs": 150000},`, 1)
	for file, text := range map[string]string{plain: text, strict: weaker.ReplaceAllString(text, "")} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// weaker is the mode that configuration accepts besides isolated.
var weaker = regexp.MustCompile(`"mediated-write",\s*`)

// run runs a command as the cell's user. That it ends with a code other than 0
// is no error.
func run(c matrix.Cell, limit time.Duration, env []string, name string, args ...string) (matrix.Command, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = 5 * time.Second
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin", "HOME=/root", "USER=root"}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if c.User {
		cmd.Env = append(cmd.Env, "HOME=/home/dev", "USER=dev")
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: userID, Gid: userID}
	}
	var stdout, stderr limited
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	out := matrix.Command{Code: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
	var exit *exec.ExitError
	if ctx.Err() != nil {
		out.Stderr += fmt.Sprintf("\nnot done within %v", limit)
	} else if err != nil && !errors.As(err, &exit) {
		return out, fmt.Errorf("run %s: %w", name, err)
	}
	return out, nil
}

// limited keeps the first part of what is written.
type limited struct{ bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	if room := maxOutput - l.Len(); room > 0 {
		l.Buffer.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

var ended = regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+)`)

// runTests runs a compiled package's tests.
func runTests(c matrix.Cell, t matrix.Test) (matrix.Outcome, error) {
	o := matrix.Outcome{Package: t.Package}
	args := []string{"-test.v", "-test.timeout", (testTime - 10*time.Second).String(), "-test.run", t.Run}
	if t.Skip != "" {
		args = append(args, "-test.skip", t.Skip)
	}
	cmd, err := run(c, testTime, []string{"ASPIS_BIN=" + bin}, "/opt/tests/"+strings.ReplaceAll(t.Package, "/", "-")+".test", args...)
	if err != nil {
		return o, err
	}
	o.Code = cmd.Code
	for _, m := range ended.FindAllStringSubmatch(cmd.Stdout, -1) {
		switch m[1] {
		case "PASS":
			o.Passed = append(o.Passed, m[2])
		case "FAIL":
			o.Failed = append(o.Failed, m[2])
		case "SKIP":
			o.Skipped = append(o.Skipped, m[2])
		}
	}
	if o.Code != 0 || len(o.Skipped) > 0 {
		text := cmd.Stdout + cmd.Stderr
		o.Output = text[max(0, len(text)-maxTail):]
	}
	return o, nil
}
