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
	"testing"

	"github.com/aspis-dev/aspis/cmd/internal/provider"
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
	links map[string]bool // paths of base that are symlinks
	lists int             // workspace/listTree calls
	cut   bool            // the listing is truncated
	deny  bool            // the tree may not be listed
}

func start(t testing.TB) *conversation {
	t.Helper()
	cmd := exec.Command(built)
	cmd.Dir = "/"
	return converse(t, cmd)
}

// converse starts a program with nothing but its three pipes.
func converse(t testing.TB, cmd *exec.Cmd) *conversation {
	t.Helper()
	c := &conversation{t: t, cmd: cmd, base: map[string]string{}, blobs: map[string]string{}, asked: map[string]bool{}, links: map[string]bool{}}
	c.cmd.Env = []string{} // as in its container
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

// within starts the provider in this process, with snapshots at the given
// places; the binary looks for them at one place only.
func within(t testing.TB, candidate, baseline string) *conversation {
	t.Helper()
	c := &conversation{t: t, base: map[string]string{}, blobs: map[string]string{}, asked: map[string]bool{}, links: map[string]bool{}}
	h := New("1.2.3")
	h.candidate, h.baseline = candidate, baseline
	fromHost, in := io.Pipe()
	out, toHost := io.Pipe()
	c.in, c.out = in, bufio.NewReaderSize(out, 1<<20)
	done := make(chan struct{})
	go func() {
		defer close(done)
		provider.Serve(t.Context(), h.Handler(), fromHost, toHost)
	}()
	t.Cleanup(func() { in.Close(); out.Close(); <-done })
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
		c.lists++
		if c.deny {
			c.send(obj{"jsonrpc": "2.0", "id": r.ID, "error": obj{"code": -32012, "message": "not the tree", "data": obj{"failClass": "policy"}}})
			return
		}
		for p, text := range c.base {
			kind := "file"
			if c.links[p] {
				kind = "symlink"
			}
			ref := schemas.BlobRefOf([]byte(text))
			c.blobs[string(ref)] = text
			entries = append(entries, obj{"path": p, "blobId": ref, "kind": kind})
		}
		c.send(obj{"jsonrpc": "2.0", "id": r.ID, "result": obj{"entries": entries, "truncated": c.cut}})
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
	if changes == nil {
		changes = []obj{}
	}
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
