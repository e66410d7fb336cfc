package seccomp

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

func mustCompile(tb testing.TB, p Profile, arch string) []byte {
	tb.Helper()
	b, err := Compile(p, arch)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// TestTables holds the generated tables against their source.
func TestTables(t *testing.T) {
	for name, info := range map[string]*arch.Info{"amd64": arch.X86_64, "arm64": arch.AARCH64} {
		a, err := lookupArch(name)
		if err != nil {
			t.Fatal(err)
		}
		numbers := a.numbers()
		if len(numbers) != len(info.SyscallNames) || len(numbers) < 300 {
			t.Errorf("%s: %d calls, %d in the source; run go generate", name, len(numbers), len(info.SyscallNames))
		}
		for call, nr := range info.SyscallNames {
			if numbers[call] != uint32(nr) {
				t.Errorf("%s: %s is %d, want %d", name, call, numbers[call], nr)
			}
		}
		if a.audit != uint32(info.ID) {
			t.Errorf("%s: audit name %#x, want %#x", name, a.audit, info.ID)
		}
	}
}

// TestDecisions runs the program on every call of every architecture, known
// or not, and compares it with the verdict that it was made from.
func TestDecisions(t *testing.T) {
	arguments := [][6]uint64{
		{}, {1, 1, 1}, {2, 2, 2}, {10, unix.TIOCSTI, unix.S_IFBLK | 0o600}, {16, tioclinux, unix.S_IFIFO},
		{unix.CLONE_NEWUSER}, {unix.CLONE_VM | unix.CLONE_FILES | uint64(unix.SIGCHLD), unix.S_IFCHR, unix.S_IFCHR},
		{1 << 40, 1 << 40, 1 << 40}, {1<<40 | unix.CLONE_NEWNET, 1<<40 | unix.TIOCSTI, 1<<40 | unix.S_IFCHR},
		{personalityQuery, unix.S_IFREG}, {^uint64(0), ^uint64(0), ^uint64(0)},
	}
	for _, p := range []Profile{{}, {Egress: true}, {Allow: []string{"keyctl"}}} {
		for _, name := range Architectures() {
			program := mustCompile(t, p, name)
			vm := kernelVM(t, program)
			a, err := lookupArch(name)
			if err != nil {
				t.Fatal(err)
			}
			calls, err := p.calls(name)
			if err != nil {
				t.Fatal(err)
			}
			known := map[uint32]verdict{}
			for _, c := range calls {
				known[c.nr] = c.verdict
			}
			numbers := []uint32{0x40000000, 0x40000000 + 1, 0x7fffffff, 0xffffffff}
			for nr := range uint32(700) {
				numbers = append(numbers, nr)
			}
			for _, nr := range numbers {
				for _, args := range arguments {
					c := Call{Arch: a.audit, Nr: nr, Args: args}
					want := ActionENOSYS
					if v, ok := known[nr]; ok {
						want = v.decide(args)
					}
					got, err := Decide(program, c)
					if err != nil {
						t.Fatal(err)
					}
					if got != want {
						t.Fatalf("%s: call %d%x gives %#x, want %#x", name, nr, args, got, want)
					}
					if k := vm(c); k != got {
						t.Fatalf("%s: call %d%x: an independent machine gives %#x, ours %#x", name, nr, args, k, got)
					}
				}
			}
			for _, other := range []uint32{0, unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, ^a.audit} {
				if got, err := Decide(program, Call{Arch: other, Nr: 1}); err != nil || got != ActionKill {
					t.Errorf("%s: architecture %#x gives %#x, %v", name, other, got, err)
				}
			}
		}
	}
}

func (v verdict) decide(args [6]uint64) Action {
	for _, t := range v.tests {
		if uint32(args[t.arg])&t.mask == t.value {
			return t.then
		}
	}
	return v.otherwise
}

// kernelVM runs a program on an interpreter that is not ours. It loads words
// in network order, and so is given the data in that.
func kernelVM(t *testing.T, program []byte) func(Call) Action {
	t.Helper()
	var code []bpf.Instruction
	for i := 0; i < len(program); i += 8 {
		raw := bpf.RawInstruction{
			Op: binary.LittleEndian.Uint16(program[i:]), Jt: program[i+2], Jf: program[i+3], K: binary.LittleEndian.Uint32(program[i+4:]),
		}
		code = append(code, raw.Disassemble())
	}
	vm, err := bpf.NewVM(code)
	if err != nil {
		t.Fatal(err)
	}
	return func(c Call) Action {
		data := binary.BigEndian.AppendUint32(nil, c.Nr)
		data = binary.BigEndian.AppendUint32(data, c.Arch)
		data = binary.BigEndian.AppendUint64(data, 0)
		for _, a := range c.Args {
			data = binary.BigEndian.AppendUint32(data, uint32(a))
			data = binary.BigEndian.AppendUint32(data, uint32(a>>32))
		}
		n, err := vm.Run(data)
		if err != nil {
			t.Fatal(err)
		}
		return Action(uint32(n))
	}
}

// TestVerdicts names what must and must not be possible, whatever the base
// profile becomes.
func TestVerdicts(t *testing.T) {
	const ns, plain = unix.CLONE_NEWUSER | unix.CLONE_NEWNS, unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND
	for _, c := range []struct {
		name string
		args [6]uint64
		want Action
	}{
		{"read", [6]uint64{}, ActionAllow},
		{"execve", [6]uint64{}, ActionAllow},
		{"openat2", [6]uint64{}, ActionAllow},
		{"clone", [6]uint64{plain}, ActionAllow},
		{"clone", [6]uint64{plain | ns}, ActionEPERM},
		{"clone3", [6]uint64{}, ActionENOSYS},
		{"socket", [6]uint64{unix.AF_UNIX}, ActionAllow},
		{"socket", [6]uint64{unix.AF_INET}, ActionFamily},
		{"socket", [6]uint64{unix.AF_NETLINK}, ActionFamily},
		{"socket", [6]uint64{unix.AF_PACKET}, ActionFamily},
		{"socket", [6]uint64{unix.AF_VSOCK}, ActionFamily},
		{"socket", [6]uint64{unix.AF_ALG}, ActionFamily},
		{"socket", [6]uint64{1<<32 | unix.AF_INET}, ActionFamily},
		{"socketpair", [6]uint64{unix.AF_UNIX}, ActionAllow},
		{"ioctl", [6]uint64{0, unix.TCGETS}, ActionAllow},
		{"ioctl", [6]uint64{0, unix.TIOCSTI}, ActionEPERM},
		{"ioctl", [6]uint64{0, 1<<32 | unix.TIOCSTI}, ActionEPERM},
		{"ioctl", [6]uint64{0, tioclinux}, ActionEPERM},
		{"personality", [6]uint64{0xffffffff}, ActionAllow},
		{"personality", [6]uint64{0x0008}, ActionEPERM},
		{"personality", [6]uint64{0x0040000}, ActionEPERM}, // ADDR_NO_RANDOMIZE
		{"mknodat", [6]uint64{0, 0, unix.S_IFIFO}, ActionAllow},
		{"mknodat", [6]uint64{0, 0, unix.S_IFBLK}, ActionEPERM},
		{"restart_syscall", [6]uint64{}, ActionAllow},
	} {
		for _, name := range Architectures() {
			a, err := lookupArch(name)
			if err != nil {
				t.Fatal(err)
			}
			nr, ok := a.numbers()[c.name]
			if !ok {
				t.Errorf("%s has no %s", name, c.name)
				continue
			}
			got, err := Decide(mustCompile(t, Profile{}, name), Call{Arch: a.audit, Nr: nr, Args: c.args})
			if err != nil || got != c.want {
				t.Errorf("%s: %s%x gives %#x, %v, want %#x", name, c.name, c.args, got, err, c.want)
			}
		}
	}
	open, err := Open(mustCompile(t, Profile{Egress: true}, "amd64"), Forbidden())
	if err != nil || len(open) != 0 {
		t.Errorf("open: %v, %v", open, err)
	}
}

// TestForbiddenIsKnown finds spelling mistakes: a name that no architecture
// has, and a call that the default of the engines would never have allowed is
// fine.
func TestForbiddenIsKnown(t *testing.T) {
	everywhere := map[string]bool{}
	for _, info := range []*arch.Info{arch.X86_64, arch.AARCH64, arch.I386, arch.ARM} {
		for name := range info.SyscallNames {
			everywhere[name] = true
		}
	}
	seen := map[string]bool{}
	for _, name := range Forbidden() {
		if !everywhere[name] {
			t.Errorf("no architecture has %q", name)
		}
		if seen[name] {
			t.Errorf("%q is forbidden twice", name)
		}
		seen[name] = true
	}
	for name := range (Profile{}).conditional() {
		if seen[name] {
			t.Errorf("%q is forbidden and conditional", name)
		}
	}
}

// TestUnlisted names every call that is refused only because nobody listed
// it, so that a new one is noticed when the tables grow.
func TestUnlisted(t *testing.T) {
	want := strings.Fields("afs_syscall clone3 get_mempolicy getpmsg lsm_get_self_attr lsm_list_modules putpmsg security sysfs tuxcall ustat vserver")
	calls, err := Profile{}.calls("amd64")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range calls {
		if len(c.verdict.tests) == 0 && c.verdict.otherwise == ActionENOSYS {
			got = append(got, c.name)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestDigest(t *testing.T) {
	a, b := Default().Digest(), Profile{Egress: true}.Digest()
	if a == b || a != (Profile{}).Digest() || len(a) != len("sha256:")+64 {
		t.Errorf("digests %s and %s", a, b)
	}
	if c := (Profile{Allow: []string{"keyctl"}}).Digest(); c == a {
		t.Error("an allowed call does not show in the digest")
	}
}

func TestCompileRefuses(t *testing.T) {
	if _, err := Compile(Profile{}, "mips"); err == nil {
		t.Error("compiled for an unknown architecture")
	}
	if _, err := Compile(Profile{Allow: []string{"no_such_call"}}, "amd64"); err == nil {
		t.Error("allowed a call that is none")
	}
}

func FuzzDecide(f *testing.F) {
	f.Add(mustCompile(f, Profile{}, "amd64"), uint32(1), uint64(5))
	f.Add([]byte{6, 0, 0, 0, 0, 0, 0xff, 0x7f}, uint32(0), uint64(0))
	f.Fuzz(func(_ *testing.T, program []byte, nr uint32, arg uint64) {
		_, _ = Decide(program, Call{Nr: nr, Args: [6]uint64{arg, arg, arg}})
	})
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		program := mustCompile(b, Profile{}, "amd64")
		b.ReportMetric(float64(len(program)/8), "instructions")
	}
}

func BenchmarkCached(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		if _, _, err := Cached(dir, Default()); err != nil {
			b.Fatal(err)
		}
	}
}
