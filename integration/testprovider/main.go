// Command testprovider is the provider of the black-box tests: honest by
// default, hostile by the behaviours named in its arguments. It speaks raw
// JSON-RPC, so that it can break every rule of the protocol; it shares no code
// with the host.
package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"sync"
	"time"
)

// provider is one conversation.
type provider struct {
	in     *bufio.Reader
	outMu  sync.Mutex
	out    io.Writer
	behave map[string]string
	nextID int
	queue  []map[string]json.RawMessage // requests that came while a callback waited
	read   map[string]bool
	asked  map[string]string // callbacks under way: id to method
	kept   []recorded
}

func main() {
	p := &provider{in: bufio.NewReaderSize(os.Stdin, 1<<20), out: os.Stdout, behave: map[string]string{}, read: map[string]bool{}, asked: map[string]string{}}
	for _, a := range os.Args[1:] {
		k, v, _ := strings.Cut(a, "=")
		p.behave[k] = v
	}
	p.atStart()
	for {
		m := p.next()
		if m == nil {
			return
		}
		p.handle(m)
	}
}

func (p *provider) is(name string) bool { _, ok := p.behave[name]; return ok }

// id is what the provider says it is called and versioned.
func (p *provider) id() (string, string) {
	id, version := "testprovider", "1.0.0"
	if v, ok := p.behave["id"]; ok {
		id = v
	}
	if v, ok := p.behave["version"]; ok {
		version = v
	}
	return id, version
}

func (p *provider) next() map[string]json.RawMessage {
	if len(p.queue) > 0 {
		m := p.queue[0]
		p.queue = p.queue[1:]
		return m
	}
	return p.receive()
}

func (p *provider) receive() map[string]json.RawMessage {
	line, err := p.in.ReadBytes('\n')
	if err != nil {
		if p.is("outlive") {
			time.Sleep(time.Hour)
		}
		return nil
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(line, &m); err != nil {
		fmt.Fprintln(os.Stderr, "testprovider: the host sent no JSON:", err)
		os.Exit(3)
	}
	p.keep(line[:len(line)-1], m)
	return m
}

func (p *provider) send(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testprovider:", err)
		os.Exit(3)
	}
	p.raw(string(b) + "\n")
}

func (p *provider) raw(s string) {
	p.outMu.Lock()
	defer p.outMu.Unlock()
	_, _ = io.WriteString(p.out, s)
}

type object = map[string]any

func (p *provider) result(id json.RawMessage, v any) {
	p.send(object{"jsonrpc": "2.0", "id": id, "result": v})
}

func (p *provider) fail(id json.RawMessage, code int, message, class string) {
	p.send(object{"jsonrpc": "2.0", "id": id, "error": object{"code": code, "message": message, "data": object{"failClass": class}}})
}

// drain makes a callback and takes the line that comes for its answer, without
// looking into it: what is measured then is the host.
func (p *provider) drain(method string, params any) {
	p.nextID++
	id := fmt.Sprintf("cb-%d", p.nextID)
	p.send(object{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	head, size := []byte(nil), 0
	for {
		part, err := p.in.ReadSlice('\n')
		if size == 0 {
			head = append(head, part[:min(len(part), 80)]...)
		}
		size += len(part)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			os.Exit(0)
		case !strings.Contains(string(head), `"`+id+`","result":{`):
			fmt.Fprintf(os.Stderr, "testprovider: not an answer to %s: %s\n", id, head)
			os.Exit(3)
		}
		return
	}
}

// call makes a callback and waits for its answer.
func (p *provider) call(method string, params any) (json.RawMessage, json.RawMessage) {
	p.nextID++
	id := fmt.Sprintf("cb-%d", p.nextID)
	p.asked[id] = method
	p.send(object{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	for {
		m := p.receive()
		if m == nil {
			os.Exit(0)
		}
		if string(m["id"]) == `"`+id+`"` && m["method"] == nil {
			return m["result"], m["error"]
		}
		p.queue = append(p.queue, m)
	}
}

func (p *provider) handle(m map[string]json.RawMessage) {
	var method string
	_ = json.Unmarshal(m["method"], &method)
	switch method {
	case "initialize":
		p.initialize(m["id"], m["params"])
	case "initialized":
		if p.is("crash-initialized") {
			os.Exit(7)
		}
	case "check/evaluate":
		p.check(m["id"], m["params"])
	case "edit/propose":
		p.propose(m["id"], m["params"])
	case "sense/references", "sense/callers", "sense/callees", "sense/symbols", "sense/impact", "sense/query":
		p.inspect(m["id"], method, m["params"])
	case "shutdown":
		if p.is("ignore-term") {
			return
		}
		p.result(m["id"], nil)
	case "exit":
		if !p.is("ignore-term") {
			os.Exit(0)
		}
	case "workspace/baselineChanged", "$/cancelRequest":
	default:
		if m["id"] != nil && m["method"] != nil {
			p.fail(m["id"], -32601, "no such method", "contract")
		}
	}
}

func (p *provider) initialize(id, params json.RawMessage) {
	var q struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	_ = json.Unmarshal(params, &q)
	switch {
	case p.is("crash-init"):
		fmt.Fprintln(os.Stderr, "fatal: cannot start \x1b[31mhere\x1b[0m")
		os.Exit(9)
	case p.is("hang-init"):
		time.Sleep(time.Hour)
	case p.is("refuse-version"):
		p.fail(id, -32014, "only asp/2.0 is spoken here", "contract")
		return
	case p.is("malformed-init"):
		p.result(id, object{"serverInfo": "nobody"})
		return
	case p.is("not-json"):
		p.raw("Starting provider...\n")
		return
	}
	name, version := p.id()
	permissions := object{"read": []string{"**"}, "write": false, "network": false}
	if p.is("ask-network") {
		permissions["network"] = true
	}
	if globs, ok := p.behave["read"]; ok {
		permissions["read"] = strings.Split(globs, ",")
	}
	res := object{
		"serverInfo":         object{"name": name, "version": version, "fingerprint": "sha256:" + strings.Repeat("0", 64)},
		"capabilityFamilies": []string{"check"},
		"capabilities": object{"check": object{
			"capabilityVersion": "1", "diagnosticSources": []string{"test"}, "scopes": []string{"changeset", "workspace"},
			"comparisons": []string{"introduced", "all", "resolved"}, "partialResults": false, "incremental": false,
			"unsupportedReporting": "assessment-status",
		}},
		"requestedPermissions": permissions,
	}
	if p.is("no-check") {
		res["capabilityFamilies"] = []string{"inspect"}
		res["capabilities"] = object{"inspect": object{"verbs": []string{"symbols"}}}
	}
	if p.is("edit") {
		res["capabilityFamilies"] = append(res["capabilityFamilies"].([]string), "edit")
		res["capabilities"].(object)["edit"] = editCapability()
	}
	if p.is("inspect") {
		res["capabilityFamilies"] = append(res["capabilityFamilies"].([]string), "inspect")
		res["capabilities"].(object)["inspect"] = object{"verbs": []string{"symbols", "references", "impact"}}
	}
	if f, ok := p.behave["forge-init"]; ok {
		res[f] = "isolated"
	}
	p.result(id, res)
}

// digest is the digest of a JSON value in canonical form. encoding/json sorts
// the keys of maps by bytes, which is code point order in UTF-8.
func digest(raw json.RawMessage) string {
	var v any
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return "sha256:undecodable"
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(v)
	sum := sha256.Sum256([]byte(strings.TrimSuffix(b.String(), "\n")))
	return "sha256:" + hex.EncodeToString(sum[:])
}

type change struct{ Path, Kind, From, Before, After string }

type checkParams struct {
	Changeset     json.RawMessage `json:"changeset"`
	Scope         json.RawMessage `json:"scope"`
	Comparison    string          `json:"comparison"`
	Configuration json.RawMessage `json:"configuration"`
}

func (p *provider) check(id, raw json.RawMessage) {
	var q checkParams
	if err := json.Unmarshal(raw, &q); err != nil {
		p.fail(id, -32602, err.Error(), "input")
		return
	}
	var cs struct {
		Baseline object
		Changes  []change
	}
	_ = json.Unmarshal(q.Changeset, &cs)
	if p.hostileBefore(id, cs.Changes) {
		return
	}
	texts := p.readAfter(cs.Changes)
	p.attack()
	p.dial()
	blobs := []string{}
	for b := range p.read {
		blobs = append(blobs, b)
	}
	sort.Strings(blobs)
	p.read = map[string]bool{}
	name, version := p.id()
	config := q.Configuration
	if len(config) == 0 {
		config = json.RawMessage("{}")
	}
	part := object{"scope": q.Scope, "diagnosticSources": []string{"test"}, "rules": []string{}, "comparison": q.Comparison}
	a := object{
		"status": "complete", "diagnostics": p.diagnose(texts),
		"coverage":  object{"requested": part, "covered": part, "degraded": []any{}, "unsupported": []any{}, "exhaustive": true, "truncated": false},
		"validAsOf": object{"baseline": cs.Baseline, "changesetDigest": digest(q.Changeset), "blobs": blobs},
		"provider":  object{"id": name, "version": version, "configDigest": digest(config), "capabilityVersion": "1"},
		"timing":    object{"elapsedMs": 1}, "cache": object{"status": "disabled"},
	}
	if opened := p.behave["opened"]; opened != "" {
		// What an attack could do is told as a finding, so that a test sees it.
		a["diagnostics"] = []any{object{"code": "test/escape", "severity": "error", "source": "test", "message": opened,
			"location": object{"path": "escape"}, "fingerprint": "escape", "introduced": true}}
	}
	a["diagnostics"] = append(a["diagnostics"].([]any), p.recordings()...)
	p.spoil(a)
	p.answer(id, a)
}

// readAfter fetches the changed files by callback.
func (p *provider) readAfter(changes []change) map[string]string {
	texts := map[string]string{}
	for _, c := range changes {
		if c.After == "" || p.is("read-nothing") {
			continue
		}
		if p.is("drain") {
			p.drain("workspace/readBlob", object{"blobs": []string{c.After}})
			p.read[c.After] = true
			continue
		}
		res, failed := p.call("workspace/readBlob", object{"blobs": []string{c.After}})
		if failed != nil {
			fmt.Fprintf(os.Stderr, "testprovider: readBlob %s: %s\n", c.Path, failed)
			continue
		}
		var got struct {
			Blobs []struct{ ID, Encoding, Bytes string }
		}
		_ = json.Unmarshal(res, &got)
		for _, b := range got.Blobs {
			p.read[b.ID] = true
			texts[c.Path] = b.Bytes
		}
	}
	return texts
}

// fix adds to a finding how it could be mended: inline with fix, which takes the
// marker out, or by reference with edit-ref.
func (p *provider) fix(finding object, path, text string, marker object) {
	sum := sha256.Sum256([]byte(text))
	ref := "blob:sha256:" + hex.EncodeToString(sum[:])
	switch {
	case p.is("fix"):
		baseline := object{"rev": "git:tree:" + strings.Repeat("0", 40)}
		finding["fix"] = object{"workspaceEdit": object{"baseline": baseline, "documentChanges": []any{object{
			"path": path, "kind": "modify", "precondition": object{"expectedDigest": ref},
			"edits": []any{object{"range": marker, "rangeBasis": ref, "coordinateSystem": "utf16", "newText": "mended"}}}}}}
	case p.is("edit-ref"):
		finding["fix"] = object{"editRef": "replace-resource", "args": object{}}
	}
}

// diagnose reports each line that holds TEST-ERROR, TEST-WARNING or TEST-INFO.
func (p *provider) diagnose(texts map[string]string) []any {
	out := []any{}
	paths := make([]string, 0, len(texts))
	for path := range texts {
		paths = append(paths, path)
	}
	sort.Strings(paths)
	code := "test/marker"
	if c, ok := p.behave["code"]; ok {
		code = c
	}
	for _, path := range paths {
		for n, line := range strings.Split(texts[path], "\n") {
			for marker, severity := range map[string]string{"TEST-ERROR": "error", "TEST-WARNING": "warning", "TEST-INFO": "info"} {
				if at := strings.Index(line, marker); at >= 0 {
					sum := sha256.Sum256([]byte(path + marker + line))
					whole := object{"start": object{"line": n, "char": at}, "end": object{"line": n, "char": at + len(marker)}}
					out = append(out, object{
						"code": code, "severity": severity, "source": "test", "message": "found " + marker,
						"location": object{"path": path, "range": object{
							"start": object{"line": n, "char": at}, "end": object{"line": n, "char": at + len(marker)}}},
						"fingerprint": hex.EncodeToString(sum[:]), "introduced": true,
					})
					p.fix(out[len(out)-1].(object), path, texts[path], whole)
				}
			}
		}
	}
	return out
}
