package egress_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/aspis-dev/aspis/sandbox/egress"
)

func TestParseRule(t *testing.T) {
	for in, want := range map[string]string{
		"api.Example.org": "api.example.org:443", "example.org.:80": "example.org:80", "*.example.org": "*.example.org:443",
		"192.0.2.7": "192.0.2.7:443", "[2001:DB8::1]:8443": "[2001:db8::1]:8443", "2001:db8::1": "[2001:db8::1]:443",
		"10.1.0.0/16:22": "10.1.0.0/16:22", "::ffff:10.0.0.1": "10.0.0.1:443", "[fd00::/8]:443": "[fd00::/8]:443",
		"xn--bcher-kva.example": "xn--bcher-kva.example:443", "localhost:8080": "localhost:8080",
	} {
		r, err := egress.ParseRule(in)
		if err != nil || r.String() != want {
			t.Errorf("%q is %q, %v; want %q", in, r, err, want)
		}
	}
	for _, in := range []string{
		"", "*", "*.org", "**.a.b", "a.*.b", "a..b", "-a.b", "a b", "bücher.example", "a.b:0", "a.b:65536", "a.b:x", "a.b:080", "a.b:",
		"127.1", "0x7f.1", "2130706433", "0.0.0.0/0", "::/0", "10.1.2.3/16", "fe80::1%eth0", "a.b/c", "http://a.b", "a.b:1:2", "[a.b]:1",
		"::ffff:10.0.0.0/104", strings.Repeat("a.", 130) + "b", strings.Repeat("a", 64) + ".b", "a.b\n", "a.b\x00",
	} {
		if r, err := egress.ParseRule(in); err == nil {
			t.Errorf("%q is taken as %q", in, r)
		}
	}
}

func TestListIsCanonical(t *testing.T) {
	a, err := egress.ParseList("b.example:80", "A.example", "b.example.:80")
	if err != nil {
		t.Fatal(err)
	}
	b, err := egress.ParseList("a.example:443", "b.example:80")
	if err != nil {
		t.Fatal(err)
	}
	if a.Digest() != b.Digest() || strings.Join(a.Strings(), " ") != "a.example:443 b.example:80" {
		t.Errorf("%q and %q", a.Strings(), b.Strings())
	}
	c, err := egress.ParseList("a.example:443", "b.example:81")
	if err != nil || c.Digest() == b.Digest() {
		t.Errorf("another port has the same digest (%v)", err)
	}
	if _, err := egress.ParseList(strings.Split(strings.Repeat("a.b ", 257), " ")...); err == nil {
		t.Error("a list without end is taken")
	}
}

// FuzzParseRule: what is taken is canonical, and says the same when read again.
func FuzzParseRule(f *testing.F) {
	for _, s := range []string{"a.b:1", "*.a.b", "[::1]:2", "10.0.0.0/8", "::ffff:1.2.3.4", "a.b.:443"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := egress.ParseRule(s)
		if err != nil {
			return
		}
		again, err := egress.ParseRule(r.String())
		if err != nil || again != r {
			t.Errorf("%q is %q and then %q, %v", s, r, again, err)
		}
	})
}

// FuzzSOCKS: no input makes the parser read without end or answer wrongly.
func FuzzSOCKS(f *testing.F) {
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x03\x03a.b\x01\xbb"))
	f.Add([]byte("\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50"))
	f.Add([]byte("\x05\x02\x01\x02"))
	f.Add([]byte("\x05\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		rw := &pipe{in: bytes.NewReader(in)}
		host, port, err := egress.ReadSocks(rw)
		if used := len(in) - rw.in.Len(); used > 2+255+4+256+2 {
			t.Errorf("%d bytes were read", used)
		}
		if out := rw.out.Len(); out > 2 {
			t.Errorf("%d bytes were answered", out)
		}
		if err == nil && (len(host) > 255 || in[0] != 5) {
			t.Errorf("took %q port %d", host, port)
		}
	})
}

type pipe struct {
	in  *bytes.Reader
	out bytes.Buffer
}

func (p *pipe) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p *pipe) Write(b []byte) (int, error) { return p.out.Write(b) }
