package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/aspis-dev/aspis/integration/vm/matrix"
)

// bench is what all machines are started from.
type bench struct {
	accel string
	disk  string
	boots map[matrix.Kernel]bootFiles
	logs  string // directory for the consoles of machines that failed
}

type bootFiles struct{ kernel, memory string }

// maxReport bounds what is read of what a machine tells.
const maxReport = 8 << 20

// boot starts one machine, waits for its end and gives what it told. The disk
// is not changed: what the machine writes goes to a file without a name.
func (b bench) boot(ctx context.Context, c matrix.Cell, limit time.Duration) (r matrix.Report, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	dir, err := os.MkdirTemp("", "aspis-vm-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	console, told := filepath.Join(dir, "console"), filepath.Join(dir, "report")
	line := "console=ttyS0 quiet panic=-1 apparmor=1 security=apparmor aspis.cell=" + c.Name
	if c.NoOverlay {
		line += " aspis.without=overlay"
	}
	boot := b.boots[c.Kernel]
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-accel", b.accel, "-cpu", "max", "-smp", "2", "-m", "1024", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", boot.kernel, "-initrd", boot.memory, "-append", line,
		"-drive", "file="+b.disk+",format=raw,if=virtio,snapshot=on",
		"-chardev", "file,id=console,path="+console, "-serial", "chardev:console",
		"-chardev", "file,id=report,path="+told, "-serial", "chardev:report",
	)
	cmd.Env = append(os.Environ(), "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("not done within %v", limit)
	} else if err != nil {
		err = fmt.Errorf("qemu: %w: %s", err, stderr.String())
	}
	if err == nil {
		r, err = readReport(told)
	}
	if err != nil {
		err = errors.Join(err, b.keep(console, c.Name))
	}
	return r, err
}

func readReport(path string) (r matrix.Report, err error) {
	f, err := os.Open(path)
	if err != nil {
		return r, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxReport))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(bytes.TrimSpace(text), &r); err != nil {
		return r, fmt.Errorf("the machine told nothing that can be read: %w", err)
	}
	return r, nil
}

// keep leaves a machine's console for whoever looks for what went wrong.
func (b bench) keep(console, name string) error {
	text, err := os.ReadFile(console)
	if err != nil {
		return fmt.Errorf("there is no console: %w", err)
	}
	to := filepath.Join(b.logs, name+".console")
	if err := os.WriteFile(to, text, 0o644); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return fmt.Errorf("its console is in %s and ends with:\n%s", to, strings.Join(lines[max(0, len(lines)-15):], "\n"))
}
