package hygiene

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/aspis-dev/aspis/schemas"
)

var built string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "hygiene")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	built = filepath.Join(dir, "aspis-hygiene")
	cmd := exec.Command("go", "build", "-ldflags", "-X main.version=1.2.3", "-o", built, "github.com/aspis-dev/aspis/cmd/aspis-hygiene")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build aspis-hygiene: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// conversation plays host to the real binary.
type conversation struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	next  int
	base  map[string]string // the baseline's files
	blobs map[string]string // every blob that may be read
	asked map[string]bool
}

func start(t testing.TB) *conversation {
	t.Helper()
	c := &conversation{t: t, cmd: exec.Command(built), base: map[string]string{}, blobs: map[string]string{}, asked: map[string]bool{}}
	c.cmd.Env = []string{} // as in its container: nothing
	c.cmd.Dir = "/"
	c.cmd.Stderr = os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReaderSize(out, 1<<20)
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.in.Close(); c.cmd.Process.Kill(); c.cmd.Wait() })
	return c
}

type reply struct {
	ID     json.RawMessage
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *schemas.Error
}

func (c *conversation) send(v any) {
	c.t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.in.Write(append(b, '\n')); err != nil {
		c.t.Fatal(err)
	}
}

type obj = map[string]any

// call makes a request and serves callbacks until its answer comes.
func (c *conversation) call(method string, params any) reply {
	c.t.Helper()
	c.next++
	id := fmt.Sprint("h", c.next)
	m := obj{"jsonrpc": "2.0", "id": id, "method": method}
	if params != nil {
		m["params"] = params
	}
	c.send(m)
	return c.wait(id)
}

func (c *conversation) wait(id string) reply {
	c.t.Helper()
	for {
		line, err := c.out.ReadBytes('\n')
		if err != nil {
			c.t.Fatal(err)
		}
		var r reply
		if err := json.Unmarshal(line, &r); err != nil {
			c.t.Fatalf("%v: %.200s", err, line)
		}
		if r.Method != "" {
			c.serve(r)
			continue
		}
		if string(r.ID) == `"`+id+`"` {
			return r
		}
	}
}

func (c *conversation) serve(r reply) {
	c.t.Helper()
	switch r.Method {
	case "workspace/readBlob":
		var p schemas.ReadBlobParams
		json.Unmarshal(r.Params, &p)
		var blobs []obj
		for _, ref := range p.Blobs {
			text, ok := c.blobs[string(ref)]
			if !ok {
				c.send(obj{"jsonrpc": "2.0", "id": r.ID, "error": obj{"code": -32012, "message": "no", "data": obj{"failClass": "policy"}}})
				return
			}
			c.asked[string(ref)] = true
			blobs = append(blobs, obj{"id": ref, "encoding": "base64", "bytes": base64.StdEncoding.EncodeToString([]byte(text))})
		}
		c.send(obj{"jsonrpc": "2.0", "id": r.ID, "result": obj{"blobs": blobs}})
	case "workspace/listTree":
		entries := []obj{}
		for p, text := range c.base {
			entries = append(entries, obj{"path": p, "blobId": schemas.BlobRefOf([]byte(text)), "kind": "file"})
		}
		c.send(obj{"jsonrpc": "2.0", "id": r.ID, "result": obj{"entries": entries}})
	}
}

func (c *conversation) initialize() reply {
	return c.call("initialize", obj{"protocolVersion": "asp/1.0", "host": obj{"name": "t", "version": "0"},
		"workspace": obj{"root": "/workspace/candidate", "baseline": baseline}})
}

func (c *conversation) greet() {
	c.t.Helper()
	if r := c.initialize(); r.Error != nil {
		c.t.Fatal(r.Error)
	}
	c.send(obj{"jsonrpc": "2.0", "method": "initialized", "params": obj{"grantedPermissions": obj{"read": []string{"**"}, "resourceLimits": obj{}}, "baseline": baseline}})
}

var baseline = obj{"rev": "git:tree:4b825dc642cb6eb9a060e54bf8d69288fbee4904"}

// change puts both sides where they can be read and describes them.
func (c *conversation) change(path, from, before, after string) obj {
	ch := obj{"path": path, "kind": "modify"}
	put := func(text string) string {
		ref := string(schemas.BlobRefOf([]byte(text)))
		c.blobs[ref] = text
		return ref
	}
	switch {
	case from != "":
		ch["kind"], ch["from"], ch["before"], ch["after"] = "rename", from, put(before), put(after)
	case before == nothing:
		ch["kind"], ch["after"] = "create", put(after)
	case after == nothing:
		ch["kind"], ch["before"] = "delete", put(before)
	default:
		ch["before"], ch["after"] = put(before), put(after)
	}
	return ch
}

const nothing = "\x00absent"

func (c *conversation) check(params obj, changes ...obj) *schemas.Assessment {
	c.t.Helper()
	p := obj{"changeset": obj{"baseline": baseline, "changes": changes}, "scope": "changeset", "comparison": "introduced"}
	for k, v := range params {
		p[k] = v
	}
	r := c.call("check/evaluate", p)
	if r.Error != nil {
		c.t.Fatal(r.Error)
	}
	a, err := schemas.DecodeAssessment(r.Result, schemas.Limits{})
	if err != nil {
		c.t.Fatalf("%v\n%s", err, r.Result)
	}
	if at, found := schemas.ForbiddenField(r.Result, false); found {
		c.t.Fatal("a host-owned field at", at)
	}
	digest, err := schemas.Digest(p["changeset"])
	if err != nil || a.ValidAsOf.ChangesetDigest != digest {
		c.t.Fatalf("changeset digest %s, want %s (%v)", a.ValidAsOf.ChangesetDigest, digest, err)
	}
	if len(a.ValidAsOf.Blobs) != len(c.asked) {
		c.t.Fatalf("%d blobs named, %d served", len(a.ValidAsOf.Blobs), len(c.asked))
	}
	c.asked = map[string]bool{}
	return a
}

func codes(a *schemas.Assessment) []string {
	var out []string
	for _, d := range a.Diagnostics {
		out = append(out, strings.TrimPrefix(d.Code, "hygiene/"))
	}
	slices.Sort(out)
	return out
}

// key is a made-up key of the form that AWS uses; it opens nothing.
func key(seed byte) string {
	return "AKIA" + strings.Map(func(r rune) rune { return rune('A' + (int(r)*7+int(seed)*3)%17) }, "QWERTYUIOPASDFGH")
}

func TestRules(t *testing.T) {
	c := start(t)
	c.greet()
	big := strings.Repeat("x", defaultMaxFile+1)
	for name, tc := range map[string]struct {
		path, after string
		want        []string
	}{
		"clean":              {"a.go", "package a\n", nil},
		"aws key":            {"a.py", "k = \"" + key(1) + "\"\n", []string{"secret"}},
		"allowed by comment": {"a.py", "k = \"" + key(2) + "\" # gitleaks:allow\n", []string{"secret"}},
		"private key":        {"id", "-----BEGIN RSA PRIVATE KEY-----\n" + strings.Repeat("MIIEpAIBAAKCAQEA7bq\n", 10) + "-----END RSA PRIVATE KEY-----\n", []string{"private-key"}},
		"conflict":           {"a.c", "<<<<<<< HEAD\nint a;\n=======\nint b;\n>>>>>>> other\n", []string{"conflict-marker"}},
		"heading":            {"a.rst", "Title\n=======\n\ntext\n", nil},
		"email quote":        {"a.txt", ">>>>>>> quoted\n", nil},
		"bidi":               {"a.js", "if (admin\u202e) {}\n", []string{"bidi-control"}},
		"zero width":         {"a.js", "x\u200b = 1\n", []string{"invisible-character"}},
		"byte order mark":    {"a.cs", "\ufeffclass A {}\n", nil},
		"arabic text":        {"a.txt", "مرحبا\n", nil},
		"bad json":           {"a.json", "{\"a\": 1,}\n", []string{"invalid-json"}},
		"doubled json":       {"a.json", "{\"a\": 1, \"a\": 2}\n", []string{"invalid-json"}},
		"good json":          {"a.json", "{\"a\": [1, 2.5e3, null]}\n", nil},
		"json with comments": {"tsconfig.json", "{ // c\n}\n", nil},
		"bad yaml":           {"a.yml", "a: [1\nb: 2\n", []string{"invalid-yaml"}},
		"two documents":      {"a.yaml", "a: 1\n---\nb: 2\n", nil},
		"template":           {"a.yaml", "{{ if .x }}\na: [\n", nil},
		"bad toml":           {"a.toml", "a = \n", []string{"invalid-toml"}},
		"good toml":          {"a.toml", "[a]\nb = 1\n", nil},
		"binary":             {"a.bin", "\x00\x01<<<<<<< \n" + key(3), nil},
		"large":              {"a.dat", "\x00" + big, []string{"large-file"}},
		"not UTF-8":          {"a.txt", "caf\xe9\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			a := c.check(nil, c.change(tc.path, "", nothing, tc.after))
			if got := codes(a); !slices.Equal(got, tc.want) {
				t.Fatalf("got %v, want %v", got, tc.want)
			}
			for _, d := range a.Diagnostics {
				if d.Help == "" || d.Introduced == nil || !*d.Introduced {
					t.Fatalf("%+v", d)
				}
				if strings.Contains(d.Message, key(1)) {
					t.Fatal("the message holds the secret")
				}
			}
		})
	}
}

func TestRangesCountUTF16(t *testing.T) {
	c := start(t)
	c.greet()
	a := c.check(nil, c.change("a.py", "", nothing, "x\n\U0001F600 k = \""+key(1)+"\"\n"))
	r := a.Diagnostics[0].Location.Range
	if r.Start != (schemas.Position{Line: 1, Char: 8}) || r.End != (schemas.Position{Line: 1, Char: 28}) {
		t.Fatalf("%+v", r)
	}
}

func TestNamesThatCollide(t *testing.T) {
	c := start(t)
	c.greet()
	c.base = map[string]string{"src/Main.go": "a", "docs/é.md": "b", "lib/x": "c"}
	for path, want := range map[string]int{"src/main.go": 1, "SRC/other.go": 1, "docs/e\u0301.md": 1, "lib/y": 0} {
		a := c.check(nil, c.change(path, "", nothing, "package x\n"))
		if len(a.Diagnostics) != want {
			t.Errorf("%s: %v", path, codes(a))
		}
	}
}

func TestWhatWasThereIsNotIntroduced(t *testing.T) {
	c := start(t)
	c.greet()
	old := "a = 1\nk = \"" + key(1) + "\"\n"
	for name, tc := range map[string]struct {
		changes []obj
		want    int
	}{
		"line moved":      {[]obj{c.change("a", "", old, "x\ny\n"+old)}, 0},
		"renamed":         {[]obj{c.change("b", "a", old, old+"more\n")}, 0},
		"moved elsewhere": {[]obj{c.change("a", "", old, "a = 1\n"), c.change("c", "", "q\n", "q\nk = \""+key(1)+"\"\n")}, 0},
		"one more":        {[]obj{c.change("a", "", old, old+old)}, 1},
		"another":         {[]obj{c.change("a", "", old, old+"j = \""+key(5)+"\"\n")}, 1},
		"new file":        {[]obj{c.change("n", "", nothing, old)}, 1},
		"taken out":       {[]obj{c.change("a", "", old, "a = 1\n")}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c.t = t
			if a := c.check(nil, tc.changes...); len(a.Diagnostics) != tc.want {
				t.Fatalf("%v", codes(a))
			}
		})
	}
	all := c.check(obj{"comparison": "all"}, c.change("a", "", old, "x\n"+old))
	if len(all.Diagnostics) != 1 || *all.Diagnostics[0].Introduced {
		t.Fatalf("%+v", all.Diagnostics)
	}
	resolved := c.check(obj{"comparison": "resolved"}, c.change("a", "", old, "a = 1\n"))
	if len(resolved.Diagnostics) != 1 {
		t.Fatalf("%+v", resolved.Diagnostics)
	}
}

// TestMovesAreNeverIntroduced shuffles lines, splits files and renames them.
func TestMovesAreNeverIntroduced(t *testing.T) {
	c := start(t)
	c.greet()
	lines := []string{"a = 1", "k = \"" + key(1) + "\"", "j = \"" + key(5) + "\"", "x\u200b = 2", "# done", "k = \"" + key(1) + "\""}
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		if n++; n > 200 {
			return
		}
		before := strings.Join(lines, "\n") + "\n"
		moved := rapid.Permutation(lines).Draw(rt, "order")
		at := rapid.IntRange(0, len(moved)).Draw(rt, "split")
		one := strings.Join(append([]string{"// new head"}, moved[:at]...), "\n") + "\n"
		two := strings.Join(append(moved[at:len(moved):len(moved)], "// new tail"), "\n") + "\n"
		a := c.check(nil, c.change("b", "a", before, one), c.change("c", "", nothing, two))
		if len(a.Diagnostics) != 0 {
			rt.Fatalf("introduced %v by moving lines", codes(a))
		}
	})
}

func TestRefusedBlobIsIncomplete(t *testing.T) {
	c := start(t)
	c.greet()
	ch := c.change("a", "", nothing, "hidden\n")
	delete(c.blobs, ch["after"].(string))
	a := c.check(nil, ch)
	if a.Status != schemas.StatusIncomplete || len(a.Coverage.Degraded) != 1 || !a.Coverage.Truncated {
		t.Fatalf("%+v", a)
	}
}

func TestConfigurationIsHonouredAndBound(t *testing.T) {
	c := start(t)
	c.greet()
	conf := obj{"disable": []string{"secret"}, "maxFileBytes": 10}
	a := c.check(obj{"configuration": conf}, c.change("a", "", nothing, "k = \""+key(1)+"\"\n"))
	digest, _ := schemas.Digest(conf)
	if got := codes(a); !slices.Equal(got, []string{"large-file"}) || a.Provider.ConfigDigest != digest {
		t.Fatal(got, a.Provider.ConfigDigest)
	}
	for _, bad := range []obj{{"disable": []string{"nothing"}}, {"surprise": 1}, {"maxFileBytes": -1}} {
		r := c.call("check/evaluate", obj{"changeset": obj{"baseline": baseline, "changes": []obj{}}, "scope": "changeset", "comparison": "introduced", "configuration": bad})
		if r.Error == nil || r.Error.Data == nil || r.Error.Data.FailClass != schemas.FailInput {
			t.Fatalf("%v: %+v", bad, r)
		}
	}
}

func TestCORE_SERVER_INITIALIZE(t *testing.T) {
	c := start(t)
	r := c.initialize()
	info, err := schemas.DecodeInitializeResult(r.Result, schemas.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if info.ServerInfo.Name != "aspis-hygiene" || info.ServerInfo.Version != "1.2.3" || !strings.HasPrefix(info.ServerInfo.Fingerprint, "sha256:") {
		t.Fatalf("%+v", info.ServerInfo)
	}
	if p := info.RequestedPermissions; *p.Write || *p.Network {
		t.Fatal("it asks for more than reading")
	}
}

func TestCORE_SERVER_UNSUPPORTED_PROTOCOL(t *testing.T) {
	c := start(t)
	r := c.call("initialize", obj{"protocolVersion": "asp/2.0", "host": obj{"name": "t", "version": "0"}, "workspace": obj{"root": "/", "baseline": baseline}})
	if r.Error == nil || r.Error.Code != schemas.CodeUnsupportedVersion || r.Error.Data.FailClass != schemas.FailContract {
		t.Fatalf("%+v", r)
	}
}

func TestCORE_SERVER_PREINITIALIZED(t *testing.T) {
	c := start(t)
	for range 2 {
		r := c.call("check/evaluate", obj{"changeset": obj{"baseline": baseline, "changes": []obj{}}, "scope": "changeset", "comparison": "introduced"})
		if r.Error == nil || r.Error.Code != schemas.CodeHealthNotReady {
			t.Fatalf("%+v", r)
		}
		c.initialize()
	}
}

func TestCORE_SERVER_TYPED_ERROR(t *testing.T) {
	c := start(t)
	c.greet()
	for name, r := range map[string]reply{
		"no such method": c.call("edit/propose", obj{}),
		"no params":      c.call("check/evaluate", nil),
		"bad changeset": c.call("check/evaluate", obj{"changeset": obj{"baseline": baseline, "changes": []obj{{"path": "../x", "kind": "create", "after": "blob:sha256:" + strings.Repeat("0", 64)}}},
			"scope": "changeset", "comparison": "introduced"}),
		"unknown member": c.call("check/evaluate", obj{"changeset": obj{"baseline": baseline, "changes": []obj{}}, "scope": "changeset", "comparison": "introduced", "decision": "allow"}),
	} {
		if r.Error == nil || r.Error.Data == nil || r.Error.Data.FailClass == "" {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if a := c.check(nil, c.change("a", "", nothing, "fine\n")); a.Status != schemas.StatusComplete {
		t.Fatal("it does not go on after errors")
	}
}

func TestShutdownAndExit(t *testing.T) {
	for shutdown, want := range map[bool]int{true: 0, false: 1} {
		c := start(t)
		c.greet()
		if shutdown {
			if r := c.call("shutdown", nil); r.Error != nil {
				t.Fatal(r.Error)
			}
		}
		c.send(obj{"jsonrpc": "2.0", "method": "exit"})
		done := make(chan error, 1)
		go func() { done <- c.cmd.Wait() }()
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			t.Fatal("it did not exit")
		}
		if got := c.cmd.ProcessState.ExitCode(); got != want {
			t.Fatalf("shutdown %v: exit code %d", shutdown, got)
		}
	}
}

func FuzzScan(f *testing.F) {
	set, err := loadLeakRules()
	if err != nil {
		f.Fatal(err)
	}
	rs := &secrets{rules: func() (*leakRules, error) { return set, nil }}
	f.Add("a.json", []byte("{}"))
	f.Add("tsconfig.json", []byte("{ // c\n \"a\": [1,], /* */ }"))
	f.Add("a.yaml", []byte("a: [\n"))
	f.Add("a.toml", []byte("a = [[\n"))
	f.Add("x", []byte("<<<<<<< a\n=======\n>>>>>>> b\n\u202e"))
	f.Add("x", []byte("k = \""+key(1)+"\"\n\xff\u200b"))
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		r := &run{cfg: settings{MaxFileBytes: 100}, rules: choose(settings{}, nil, true), secrets: rs}
		hits, err := r.file(source{path: name, origin: name}, content)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range compare(both{after: hits}, schemas.Introduced) {
			d := c.diagnostic(nil)
			if p := d.Location.Range; d.Help == "" || d.Message == "" || (p != nil && (p.Start.Line < 0 || p.End.Line < p.Start.Line)) {
				t.Fatalf("%+v", d)
			}
		}
		// What is there on both sides is never new.
		if out := compare(both{before: hits, after: hits}, schemas.Introduced); len(out) != 0 {
			t.Fatalf("introduced by nothing: %+v", out)
		}
	})
}
