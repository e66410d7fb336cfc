package container

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/egress"
)

// target is a server on this machine's loopback, with its port.
func target(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "reached") }))
	t.Cleanup(s.Close)
	_, port, err := net.SplitHostPort(s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// relaySpec runs the probe with a way to the named destinations.
func relaySpec(t *testing.T, rules []string, args ...string) (sandbox.Spec, *egress.Proxy) {
	t.Helper()
	list, err := egress.ParseList(rules...)
	if err != nil {
		t.Fatal(err)
	}
	out, err := egress.New(list, egress.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	spec := evidenceSpec(t)
	spec.Args = append([]string{"probe"}, args...)
	spec.Env = append(spec.Env, egress.Environment(sandbox.RelayPort, "")...)
	spec.Relay = out
	return spec, out
}

// tries gives every way that the probe knows, to one port of this machine.
func tries(port string) []string {
	return []string{"net", "http=http://localhost:" + port, "socks=http://localhost:" + port, "connect=http://localhost:" + port,
		"http=http://localhost:1", "http=http://169.254.169.254/latest", "socks=http://10.0.0.1/", "http=http://elsewhere.invalid/",
		"dial=127.0.0.1:" + port, "dial=1.1.1.1:443", "dial=[2606:4700:4700::1111]:443", "lookup=localhost.example.org"}
}

// mustShow judges what the probe tells of tries.
func mustShow(t *testing.T, out, port string) {
	t.Helper()
	for _, want := range []string{
		"http http://localhost:" + port + `: "200 OK reached" <nil>`, "socks http://localhost:" + port + `: "200 OK reached" <nil>`,
		"connect http://localhost:" + port + `: "" Get "https://localhost:` + port + `": http: server gave HTTP response to HTTPS client`,
		`http http://localhost:1: "403 Forbidden aspis: not allowed by the list`,
		`http http://169.254.169.254/latest: "403 Forbidden`, `http http://elsewhere.invalid/: "403 Forbidden`,
		"not allowed by ruleset", "dial 127.0.0.1:" + port + `: "" dial tcp 127.0.0.1:` + port + ": connect: connection refused",
		`dial 1.1.1.1:443: "" dial tcp 1.1.1.1:443: connect: network is unreachable`,
		`dial [2606:4700:4700::1111]:443: "" dial tcp [2606:4700:4700::1111]:443: connect: `, `lookup localhost.example.org: "" lookup`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("output lacks %q", want)
		}
	}
	if strings.Count(out, "reached\"") != 2 || t.Failed() {
		t.Error(out)
	}
}

// TestRelay is ISO-NET with a list: what it names is reached by each protocol,
// and nothing else by any way.
func TestRelay(t *testing.T) {
	rt := newRuntime(t)
	port := target(t)
	spec, out := relaySpec(t, []string{"localhost:" + port, "127.0.0.1:" + port, "[::1]:" + port}, tries(port)...)
	p, err := rt.Start(testContext(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer closeProcess(t, p)
	mode, missing := p.Evidence().Mode()
	if mode != sandbox.ModeIsolated {
		t.Errorf("mode %v, missing %v", mode, missing)
	}
	for _, w := range p.Evidence().Walls {
		if w.Name == sandbox.WallNetworkInterfaces || w.Name == sandbox.WallNetworkNamespace {
			if !strings.Contains(w.Seen, "only lo, with a relay to an allow-list of 3 destinations") {
				t.Errorf("%s: %q", w.Name, w.Seen)
			}
		}
	}
	if err := p.Release(testContext(t)); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(p.Stdout())
	if err != nil {
		t.Fatal(err)
	}
	mustShow(t, string(text), port)
	log := out.Log()
	if log.Refused != 4 || len(log.Attempts) != 7 {
		t.Errorf("log %+v", log)
	}
	for _, a := range log.Attempts {
		if a.Allowed != (a.Host == "localhost" && fmt.Sprint(a.Port) == port) || !a.Allowed && a.Why == "" {
			t.Errorf("attempt %+v", a)
		}
	}
}

func TestRelayRootless(t *testing.T) {
	port := target(t)
	cmd, _ := asUser(t, "enter "+strings.Join(tries(port), " "))
	cmd.Env = append(cmd.Env, relayEnv+"=localhost:"+port+" 127.0.0.1:"+port+" [::1]:"+port)
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "not: ") {
		t.Skipf("SKIPPED: %s", out)
	}
	if code := cmd.ProcessState.ExitCode(); code != 9 {
		t.Fatalf("exit code %d; %v: %s", code, err, out)
	}
	if strings.Contains(string(out), "missing network") {
		t.Errorf("a wall of the network is missing: %s", out)
	}
	mustShow(t, string(out), port)
}

// TestRelayEvidence adds one socket to the namespace, or none: the walls must
// be seen to fall.
func TestRelayEvidence(t *testing.T) {
	rt := newRuntime(t)
	spec, _ := relaySpec(t, []string{"example.org"})
	for _, c := range []struct {
		name   string
		change func(t *testing.T, p *process)
		want   string
	}{
		{"another socket", func(t *testing.T, p *process) { another(t, p.pid, "udp4", "127.0.0.1:53") }, "1 sockets of UDP"},
		{"another listener", func(t *testing.T, p *process) { another(t, p.pid, "tcp4", "127.0.0.1:80") }, "2 sockets of TCP"},
		{"no relay", func(_ *testing.T, p *process) { p.relay.close() }, "could not be checked"},
	} {
		t.Run(c.name, func(t *testing.T) {
			started, err := rt.Start(testContext(t), spec)
			if err != nil {
				t.Fatal(err)
			}
			defer closeProcess(t, started)
			p, ok := started.(*process)
			if !ok {
				t.Fatalf("a process of type %T", started)
			}
			c.change(t, p)
			filter, err := rt.filterFor(&spec)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.inspect(filter); err != nil {
				t.Fatal(err)
			}
			mode, missing := p.Evidence().Mode()
			if mode == sandbox.ModeIsolated {
				t.Errorf("mode %v", mode)
			}
			for _, w := range missing {
				if !strings.Contains(w.Seen, c.want) {
					t.Errorf("%s: %q", w.Name, w.Seen)
				}
			}
		})
	}
}

// another makes a socket in a process's network namespace.
func another(t *testing.T, pid int, network, addr string) {
	t.Helper()
	failed := make(chan error)
	go func() {
		runtime.LockOSThread()
		ns, err := unix.Open(fmt.Sprintf("/proc/%d/ns/net", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(ns, unix.CLONE_NEWNET)
			_ = unix.Close(ns)
		}
		if err == nil {
			var c interface{ Close() error }
			if network == "tcp4" {
				c, err = net.Listen(network, addr)
			} else {
				c, err = net.ListenPacket(network, addr)
			}
			if err == nil {
				t.Cleanup(func() { _ = c.Close() })
			}
		}
		failed <- err
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
}

// TestRelayEnds takes the sandbox away while something is connected.
func TestRelayEnds(t *testing.T) {
	rt := newRuntime(t)
	port := target(t)
	spec, out := relaySpec(t, []string{"localhost:" + port, "127.0.0.1:" + port, "[::1]:" + port}, "sleep")
	run(t, rt, probeSpec())
	before := footprint(t, rt)
	p, err := rt.Start(testContext(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Release(testContext(t)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
	if err := out.Close(); err != nil {
		t.Error(err)
	}
	compare(t, before, footprint(t, rt))
}
