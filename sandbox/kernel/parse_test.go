package kernel

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The texts are from real machines: a Debian 12 laptop, an Ubuntu 20.04 server
// with cgroup version 1, Docker and Kubernetes nodes, and a virtual machine
// with the hybrid layout.

const statusInside = `Name:	stage
Umask:	0022
State:	S (sleeping)
Tgid:	17369
Pid:	17369
PPid:	17334
TracerPid:	0
Uid:	2000001000	2000001000	2000001000	2000001000
Gid:	2000001000	2000001000	2000001000	2000001000
FDSize:	64
Groups:	 
NStgid:	17369	1
NSpid:	17369	1
NSpgid:	17369	1
NSsid:	17369	1
Threads:	5
SigQ:	0/96363
CapInh:	0000000000000000
CapPrm:	0000000000000000
CapEff:	0000000000000000
CapBnd:	0000000000000000
CapAmb:	0000000000000000
NoNewPrivs:	1
Seccomp:	2
Seccomp_filters:	1
Speculation_Store_Bypass:	vulnerable
`

// statusOld is of Linux 5.4, which does not count filters.
const statusOld = `Name:	sshd
Umask:	0022
State:	S (sleeping)
Pid:	1021
Uid:	1000	1000	1000	1000
Gid:	1000	1000	1000	1000
Groups:	4 24 27 1000 
NSpid:	1021
Threads:	1
CapInh:	0000000000000000
CapPrm:	0000003fffffffff
CapEff:	0000003fffffffff
CapBnd:	0000003fffffffff
CapAmb:	0000000000000000
NoNewPrivs:	0
Seccomp:	0
`

func TestParseStatus(t *testing.T) {
	n := uint32(2000001000)
	for text, want := range map[string]Status{
		statusInside: {
			UIDs: [4]uint32{n, n, n, n}, GIDs: [4]uint32{n, n, n, n}, Groups: []uint32{}, NSpid: []int{17369, 1}, Threads: 5,
			NoNewPrivs: true, Seccomp: 2, Filters: 1,
		},
		statusOld: {
			UIDs: [4]uint32{1000, 1000, 1000, 1000}, GIDs: [4]uint32{1000, 1000, 1000, 1000}, Groups: []uint32{4, 24, 27, 1000},
			NSpid: []int{1021}, Threads: 1, CapPrm: 0x3fffffffff, CapEff: 0x3fffffffff, CapBnd: 0x3fffffffff, Filters: -1,
		},
	} {
		got, err := ParseStatus(text)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
}

// TestParseStatusIncomplete takes each line away: a field that a wall rests on
// has no default.
func TestParseStatusIncomplete(t *testing.T) {
	needed := map[string]bool{"Uid": true, "Gid": true, "Groups": true, "CapInh": true, "CapPrm": true, "CapEff": true, "CapBnd": true, "CapAmb": true, "NoNewPrivs": true, "Seccomp": true}
	for line := range strings.Lines(statusInside) {
		key, _, _ := strings.Cut(line, ":")
		_, err := ParseStatus(strings.Replace(statusInside, line, "", 1))
		if (err != nil) != needed[key] {
			t.Errorf("without %s: %v", key, err)
		}
	}
	for _, bad := range []string{"Uid:\t1 2 3", "Groups:\tx", "CapEff:\tg", "Seccomp:\t-", "NoNewPrivs:\t300", "NSpid:\t1 x"} {
		if _, err := ParseStatus(statusInside + bad + "\n"); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestParseIDMap(t *testing.T) {
	for text, want := range map[string]IDMap{
		"         0          0 4294967295\n":                          {{0, 0, 4294967295}},
		"         0       1000          1\n":                          {{0, 1000, 1}},
		"         0       1000          1\n         1 100000 65536\n": {{0, 1000, 1}, {1, 100000, 65536}},
		"": nil,
	} {
		got, err := ParseIDMap(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"0 0\n", "0 0 0\n", "0 x 1\n", "4294967295 0 2\n", "0 4294967295 2\n", "-1 0 1\n", "0 0 4294967296\n", strings.Repeat("0 0 1\n", maxRanges+1)} {
		if m, err := ParseIDMap(bad); err == nil {
			t.Errorf("%.20q is taken as %v", bad, m)
		}
	}
	m := IDMap{{0, 1000, 1}, {1, 100000, 65536}}
	for in, want := range map[uint32]uint32{0: 1000, 1: 100000, 1000: 100999, 65536: 165535} {
		if out, ok := m.Outside(in); !ok || out != want {
			t.Errorf("%d is outside %d, %v", in, out, ok)
		}
		if back, ok := m.Inside(want); !ok || back != in {
			t.Errorf("%d is inside %d, %v", want, back, ok)
		}
	}
	for _, none := range []uint32{65537, math.MaxUint32} {
		if out, ok := m.Outside(none); ok {
			t.Errorf("%d is outside %d", none, out)
		}
	}
	if m.Size() != 65537 || m.String() != "0->1000 x1, 1->100000 x65536" {
		t.Errorf("%d, %s", m.Size(), m)
	}
}

func TestParseNetwork(t *testing.T) {
	dev := `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:    3193      29    0    0    0     0          0         0     3193      29    0    0    0     0       0          0
docker0:     0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
wlp0s20f3: 272231079   21733    0    0    0     0          0         0 1  1    0    0    0     0       0          0
`
	if got, err := ParseInterfaces(dev); err != nil || !slices.Equal(got, []string{"lo", "docker0", "wlp0s20f3"}) {
		t.Errorf("%v, %v", got, err)
	}
	route := "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT                                                       \n" +
		"eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0                                                                               \n" +
		"*\t0000FEA9\t00000000\t0201\t0\t0\t1000\t0000FFFF\t0\t0\t0\n"
	got, err := ParseRoutes(route)
	want := []Route{{"eth0", "00000000", "00000000", 3, 0}, {"*", "0000FEA9", "0000FFFF", 0x201, 1000}}
	if err != nil || !slices.Equal(got, want) || !got[0].Leads() || got[1].Leads() {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := ParseRoutes(""); err != nil || got != nil {
		t.Errorf("no routes: %v, %v", got, err)
	}
	six := `fe800000000000000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000002 00000000 00000001     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
`
	got, err = ParseRoutes6(six)
	if err != nil || len(got) != 2 || !got[0].Leads() || got[1].Leads() || got[1].Interface != "lo" {
		t.Errorf("%v, %v", got, err)
	}
	trie := `Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
           |-- 127.0.0.1
              /32 host LOCAL
        +-- 192.0.2.0/30 2 0 2
           |-- 192.0.2.0
              /24 link UNICAST
           |-- 192.0.2.2
              /32 host LOCAL
Local:
           |-- 192.0.2.2
              /32 host LOCAL
`
	if got, err := ParseAddresses(trie); err != nil || !slices.Equal(got, []string{"127.0.0.1", "192.0.2.2"}) {
		t.Errorf("%v, %v", got, err)
	}
	sockets := `Num       RefCount Protocol Flags    Type St Inode Path
0000000085b7e933: 00000003 00000000 00000000 0001 03   648
00000000b9d03c80: 00000002 00000000 00010000 0001 01 13583 /run/a b
c d
0000000038581f79: 00000002 00000000 00010000 0005 01 13584 @/org/kernel/udev
`
	gotS, err := ParseUnixSockets(sockets)
	wantS := []UnixSocket{{648, ""}, {13583, "/run/a b\nc d"}, {13584, "@/org/kernel/udev"}}
	if err != nil || !slices.Equal(gotS, wantS) {
		t.Errorf("%v, %v", gotS, err)
	}
	for name, f := range map[string]func() error{
		"interfaces without headings": func() error { _, err := ParseInterfaces(""); return err },
		"interface without name":      func() error { _, err := ParseInterfaces("a\nb\nlo 1 2\n"); return err },
		"route without heading":       func() error { _, err := ParseRoutes("eth0 0 0\n"); return err },
		"short route":                 func() error { _, err := ParseRoutes("Iface\neth0 0 0\n"); return err },
		"route with odd flags":        func() error { _, err := ParseRoutes("Iface\neth0 0 0 zz 0 0 0 0\n"); return err },
		"short version 6 route":       func() error { _, err := ParseRoutes6("0 0 0\n"); return err },
		"address without prefix":      func() error { _, err := ParseAddresses("/32 host LOCAL\n"); return err },
		"sockets without heading":     func() error { _, err := ParseUnixSockets(""); return err },
		"short socket":                func() error { _, err := ParseUnixSockets("Num\nx\n"); return err },
	} {
		if f() == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

func TestParseLimits(t *testing.T) {
	got, err := ParseLimits(`Limit                     Soft Limit           Hard Limit           Units     
Max cpu time              unlimited            unlimited            seconds   
Max processes             96363                96363                processes 
Max open files            1024                 1048576              files     
Max nice priority         0                    0                    
`)
	want := map[string]RLimit{
		"Max cpu time": {Unlimited, Unlimited}, "Max processes": {96363, 96363}, "Max open files": {1024, 1048576}, "Max nice priority": {},
	}
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
	for _, bad := range []string{"Max open files 1 1\n", "Limit    Soft Limit\nMax\n", "Limit    Soft Limit\nMax open x y\n"} {
		if _, err := ParseLimits(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestParseMembership(t *testing.T) {
	for name, c := range map[string]struct {
		text    string
		unified bool
		path    string
		layout  string
	}{
		"version 2 session": {"0::/user.slice/user-1000.slice/session-3.scope\n", true, "/user.slice/user-1000.slice/session-3.scope", "version 2"},
		"version 1 docker": {
			"12:pids:/docker/4f1e\n11:cpu,cpuacct:/docker/4f1e\n4:memory:/docker/4f1e\n1:name=systemd:/docker/4f1e\n", false, "/docker/4f1e", "version 1",
		},
		"hybrid": {"9:name=systemd:/\n8:pids:/aspis-1\n4:memory:/process_api/8e/aspis-1\n1:cpu:/aspis-1\n0::/\n", false, "/process_api/8e/aspis-1", "hybrid: controllers on version 1, version 2 beside it"},
		"with colons, deleted": {
			"0::/kubepods.slice/cri-containerd:ab:cd (deleted)\n", true, "/kubepods.slice/cri-containerd:ab:cd", "version 2",
		},
	} {
		list, err := ParseMembership(c.text)
		if err != nil {
			t.Fatal(err)
		}
		m, unified, ok := group(list, "memory")
		if !ok || unified != c.unified || m.Path != c.path || layout(list) != c.layout {
			t.Errorf("%s: %v %v %v %s", name, m, unified, ok, layout(list))
		}
	}
	for _, bad := range []string{"0:/\n", "x\n", "0::relative\n"} {
		if _, err := ParseMembership(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

// TestOwnGroups: a limit counts only up to where the host is in the group too.
func TestOwnGroups(t *testing.T) {
	v2 := func(p string) Membership { return Membership{Path: p} }
	v1 := func(p string) Membership { return Membership{Controllers: []string{"memory"}, Path: p} }
	for name, c := range map[string]struct {
		m    Membership
		host []Membership
		want []string
	}{
		"below the host's":    {v2("/a/b/s"), []Membership{v2("/a/b")}, []string{"/a/b/s"}},
		"beside the host's":   {v2("/a/x/s"), []Membership{v2("/a/b")}, []string{"/a/x/s", "/a/x"}},
		"the host's":          {v2("/a/b"), []Membership{v2("/a/b")}, nil},
		"above the host's":    {v2("/a"), []Membership{v2("/a/b")}, nil},
		"host at the top":     {v2("/s"), []Membership{v2("/")}, []string{"/s"}},
		"other hierarchy":     {v1("/s"), []Membership{v2("/")}, nil},
		"a name that is part": {v2("/a/bc"), []Membership{v2("/a/b")}, []string{"/a/bc"}},
	} {
		if got := own(c.m, c.host); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestParseControl(t *testing.T) {
	for text, want := range map[string]uint64{
		"max\n": Unlimited, "-1\n": Unlimited, "9223372036854771712\n": Unlimited, "268435456\n": 268435456, "0\n": 0,
	} {
		if got, err := ParseControl(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for text, want := range map[string]uint64{"max 100000\n": Unlimited, "50000 100000\n": 50, "100001 100000\n": 101, "1 100000": 1} {
		if got, err := ParseCPUMax(text); err != nil || got != want {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "1", "1 0", "x 1", "1 2 3", "-2 1"} {
		if got, err := ParseCPUMax(bad); err == nil {
			t.Errorf("%q is taken as %d", bad, got)
		}
	}
}

func TestParseEnviron(t *testing.T) {
	if got := splitEnviron("PATH=/bin\x00EMPTY=\x00\x00odd\x00"); !slices.Equal(got, []string{"PATH=/bin", "EMPTY=", "odd"}) {
		t.Errorf("%q", got)
	}
	if n, err := parseFlags("pos:\t0\nflags:\t0100002\nmnt_id:\t15\n"); err != nil || n != 0o100002 {
		t.Errorf("%o, %v", n, err)
	}
	for _, bad := range []string{"", "flags:\t9\n", "flags:\n"} {
		if _, err := parseFlags(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestPipe(t *testing.T) {
	for target, want := range map[string]uint64{"pipe:[206706]": 206706, "pipe:[x]": 0, "/pipe:[1]": 0, "pipe:[1": 0, "socket:[7]": 0} {
		if got, ok := (OpenFile{Target: target}).Pipe(); got != want || ok != (want != 0) {
			t.Errorf("%q: %d, %v", target, got, ok)
		}
	}
}

// FuzzParsers: nothing that a kernel or a container could show may end the
// host, and a table that is taken must be of a bounded size.
func FuzzParsers(f *testing.F) {
	for _, s := range []string{
		statusInside, statusOld, "0 1000 1\n1 100000 65536\n", "0::/a\n", "4:memory:/a\n", "max 100000", "flags:\t0100002\n",
		"Num\n0: 1 2 3 4 5 6 /p\nq\n", "Iface\neth0 0 0 3 0 0 0 0\n", "Limit  Soft Limit\nMax x 1 2\n", dockerMounts,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		_, _ = ParseStatus(s)
		if m, err := ParseIDMap(s); err == nil {
			for _, id := range []uint32{0, 1, 65535, math.MaxUint32} {
				if out, ok := m.Outside(id); ok {
					if _, ok := m.Inside(out); !ok {
						t.Errorf("%d has no way back in %v", id, m)
					}
				}
			}
		}
		_, _ = ParseInterfaces(s)
		_, _ = ParseRoutes(s)
		_, _ = ParseRoutes6(s)
		_, _ = ParseAddresses(s)
		_, _ = ParseUnixSockets(s)
		_, _ = ParseLimits(s)
		if list, err := ParseMembership(s); err == nil {
			for _, m := range list {
				_ = own(m, list)
			}
		}
		_, _ = ParseControl(s)
		_, _ = ParseCPUMax(s)
		_, _ = parseFlags(s)
		_ = splitEnviron(s)
		_, _ = parseSize(s)
		_, _ = ParseMounts(s)
	})
}

func TestParseSockstat(t *testing.T) {
	got, err := ParseSockstat("sockets: used 14\nTCP: inuse 2 orphan 0 tw 1 alloc 1 mem 0\nUDP: inuse 0 mem 0\nFRAG: inuse 0 memory 0\n")
	if err != nil || got["TCP"] != 2 || got["UDP"] != 0 || len(got) != 3 {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"", "sockets: used 1\n", "TCP inuse 1\n", "TCP: inuse x\n"} {
		if got, err := ParseSockstat(bad); err == nil {
			t.Errorf("%q is taken as %v", bad, got)
		}
	}
}
