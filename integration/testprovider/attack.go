package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func signalIgnore() { signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP) }

// dial tries to reach what dial=NETWORK:ADDRESS,… lists, and looks for addresses
// of its own.
func (p *provider) dial() {
	list, ok := p.behave["dial"]
	if !ok {
		return
	}
	for _, target := range strings.Split(list, ",") {
		network, addr, _ := strings.Cut(target, ":")
		c, err := net.DialTimeout(network, addr, 500*time.Millisecond)
		if err != nil {
			continue
		}
		// A datagram socket connects to anything that has a route.
		p.open("reached %s", target)
		c.Close()
	}
	ifaces, _ := net.Interfaces()
	for _, i := range ifaces {
		addrs, _ := i.Addrs()
		if i.Flags&net.FlagLoopback == 0 || len(addrs) > 0 && i.Flags&net.FlagUp != 0 {
			p.open("has the interface %s %v with %v", i.Name, i.Flags, addrs)
		}
	}
}

// isNull tells whether the null device is at a path.
func isNull(path string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && info.Mode()&os.ModeCharDevice != 0 && st.Rdev == 1<<8|3
}

// attack tries what a provider must not be able to do and says on stderr what
// worked. attack=PATH,PATH lists files of the host to read and to write.
func (p *provider) attack() {
	list, ok := p.behave["attack"]
	if !ok {
		return
	}
	for _, path := range strings.Split(list, ",") {
		if isNull(path) {
			continue // hidden by the null device, where nothing is read or kept
		}
		if b, err := os.ReadFile(path); err == nil {
			p.open("read %s (%d bytes)", path, len(b))
		}
		if f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644); err == nil {
			if _, err := f.WriteString("attacked"); err == nil {
				p.open("wrote %s", path)
			}
			f.Close()
		}
	}
	for _, path := range []string{"/workspace/candidate/x", "/workspace/baseline/x", "/provider/x", "/x", "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger", "/.aspis/stage"} {
		if f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644); err == nil {
			f.Close()
			p.open("opened %s for writing", path)
		}
	}
	for _, addr := range []string{"127.0.0.1:22", "127.0.0.1:80", "169.254.169.254:80", "10.0.0.1:53"} {
		if c, err := net.DialTimeout("tcp", addr, 300*time.Millisecond); err == nil {
			c.Close()
			p.open("reached %s", addr)
		}
	}
	if addrs, err := net.LookupHost("example.org"); err == nil {
		p.open("resolved example.org to %v", addrs)
	}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if name := e.Name(); strings.Trim(name, "0123456789") == "" && name != fmt.Sprint(os.Getpid()) {
			p.open("sees process %s", name)
		}
	}
	for name, call := range map[string]func() error{
		"mount":   func() error { return syscall.Mount("none", "/tmp", "tmpfs", 0, "") },
		"unshare": func() error { return syscall.Unshare(syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS) },
		"setuid0": func() error { return syscall.Setuid(0) },
		"chroot":  func() error { return syscall.Chroot("/tmp") },
		"mknod":   func() error { return syscall.Mknod("/tmp/sda", syscall.S_IFBLK|0o600, 8<<8) },
		"kill-1":  func() error { return syscall.Kill(-1, 0) },
	} {
		if err := call(); err == nil && (name != "setuid0" || os.Getuid() != 0) && name != "kill-1" {
			p.open("%s worked", name)
		}
	}
	fmt.Fprintln(os.Stderr, "attack done")
}

func (p *provider) open(format string, args ...any) {
	p.behave["opened"] += fmt.Sprintf(format, args...) + "; "
	fmt.Fprintf(os.Stderr, "OPEN "+format+"\n", args...)
}
