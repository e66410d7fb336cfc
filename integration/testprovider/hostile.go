package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// atStart misbehaves before the first word.
func (p *provider) atStart() {
	switch {
	case p.is("noise"):
		p.raw(strings.Repeat("x", 1<<20))
	case p.is("orphan"):
		// A child in its own session that outlives its parent, if it can.
		cmd := exec.Command("/proc/self/exe", "sleeper")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		_ = cmd.Start()
	case p.is("sleeper"):
		time.Sleep(time.Hour)
		os.Exit(0)
	case p.is("stderr-flood"):
		go func() {
			line := []byte(strings.Repeat("noise \x1b[2J", 1000) + "\n")
			for {
				if _, err := os.Stderr.Write(line); err != nil {
					return
				}
			}
		}()
	}
	if p.is("ignore-term") {
		signalIgnore()
	}
}

// hostileBefore handles the behaviours that replace the answer; it reports
// whether it did.
func (p *provider) hostileBefore(id json.RawMessage, changes []change) bool {
	switch {
	case p.is("hang"):
		time.Sleep(time.Hour)
	case p.is("slow"):
		time.Sleep(3 * time.Second)
		return false
	case p.is("crash"):
		fmt.Fprintln(os.Stderr, "panic: something went wrong")
		os.Exit(2)
	case p.is("crash-signal"):
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		panic("SIGKILL did not work; crash by panic")
	case p.is("rpc-error"):
		p.fail(id, -32010, "the database is down", p.behave["rpc-error"])
	case p.is("rpc-stale"):
		p.fail(id, -32011, "stale baseline", "health")
	case p.is("rpc-cancelled"):
		p.fail(id, -32016, "cancelled", "health")
	case p.is("no-method"):
		p.fail(id, -32601, "no such method", "contract")
	case p.is("pass"):
		p.result(id, object{"pass": true, "decision": "allow"})
	case p.is("null"):
		p.result(id, nil)
	case p.is("huge"):
		p.raw(`{"jsonrpc":"2.0","id":` + string(id) + `,"result":"`)
		chunk := strings.Repeat("A", 1<<20)
		for range 4096 {
			p.raw(chunk)
		}
		p.raw("\"}\n")
	case p.is("endless"):
		chunk := strings.Repeat("A", 1<<16)
		for {
			p.raw(chunk)
		}
	case p.is("deep"):
		p.raw(`{"jsonrpc":"2.0","id":` + string(id) + `,"result":` + strings.Repeat("[", 200_000) + strings.Repeat("]", 200_000) + "}\n")
	case p.is("doubled"):
		p.raw(`{"jsonrpc":"2.0","id":` + string(id) + `,"result":{"status":"complete","status":"error"}}` + "\n")
	case p.is("bad-utf8"):
		p.raw(`{"jsonrpc":"2.0","id":` + string(id) + ",\"result\":{\"status\":\"\xff\xfe\"}}\n")
	case p.is("unasked"):
		p.raw(`{"jsonrpc":"2.0","id":4711,"result":{}}` + "\n")
	case p.is("batch"):
		p.raw(`[{"jsonrpc":"2.0","id":` + string(id) + `,"result":{}}]` + "\n")
	case p.is("callback-flood"):
		for i := 0; ; i++ {
			p.send(object{"jsonrpc": "2.0", "id": fmt.Sprint("f", i), "method": "workspace/listTree", "params": object{}})
		}
	case p.is("callback-loop"):
		for {
			p.call("workspace/listTree", object{})
		}
	case p.is("progress-flood"):
		for i := 0; ; i++ {
			p.send(object{"jsonrpc": "2.0", "method": "$/progress", "params": object{"token": 1, "value": object{"kind": "report", "percentage": i % 100}}})
		}
	case p.is("log-flood"):
		for {
			p.send(object{"jsonrpc": "2.0", "method": "window/logMessage", "params": object{"level": "info", "message": "noise"}})
		}
	case p.is("apply-edit"):
		_, failed := p.call("workspace/applyEdit", object{"edit": object{}})
		fmt.Fprintf(os.Stderr, "applyEdit: %s\n", failed)
		return false
	case p.is("fork-bomb"):
		for range 100_000 {
			cmd := exec.Command("/proc/self/exe", "sleeper")
			if err := cmd.Start(); err != nil {
				fmt.Fprintln(os.Stderr, "fork:", err)
				return false
			}
		}
	case p.is("memory-hog"):
		var hold [][]byte
		for range 1 << 16 {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = byte(i)
			}
			hold = append(hold, b)
		}
		fmt.Fprintln(os.Stderr, len(hold))
	case p.is("disk-hog"):
		f, err := os.Create("/tmp/hog")
		if err == nil {
			b := make([]byte, 1<<20)
			for range 1 << 16 {
				if _, err = f.Write(b); err != nil {
					break
				}
			}
		}
		fmt.Fprintln(os.Stderr, "disk:", err)
		return false
	case p.is("fd-hog"):
		n := 0
		for {
			if _, err := os.Open("/dev/null"); err != nil {
				break
			}
			n++
		}
		fmt.Fprintln(os.Stderr, "fds:", n)
		return false
	default:
		return false
	}
	return true
}

// spoil damages an honest assessment.
func (p *provider) spoil(a object) {
	valid := a["validAsOf"].(object)
	who := a["provider"].(object)
	if s, ok := p.behave["status"]; ok {
		a["status"] = s
	}
	if f, ok := p.behave["forge"]; ok {
		a[f] = "allow"
	}
	if f, ok := p.behave["forge-evidence"]; ok {
		a["evidence"] = []any{object{"kind": "message", "message": "m", "data": object{"deep": []any{object{f: true}}}}}
	}
	switch {
	case p.is("stale-baseline"):
		valid["baseline"] = object{"rev": "git:tree:" + strings.Repeat("0", 40)}
	case p.is("stale-digest"):
		valid["changesetDigest"] = "sha256:" + strings.Repeat("0", 64)
	case p.is("stale-blob-extra"):
		valid["blobs"] = append(valid["blobs"].([]string), "blob:sha256:"+strings.Repeat("0", 64))
	case p.is("stale-blob-missing"):
		valid["blobs"] = []string{}
	case p.is("wrong-config"):
		who["configDigest"] = "sha256:" + strings.Repeat("0", 64)
	case p.is("wrong-id"):
		who["id"] = "somebody-else"
	case p.is("wrong-answer-version"):
		who["version"] = "9.9.9"
	case p.is("missing-member"):
		delete(a, "coverage")
	case p.is("unknown-member"):
		a["extra"] = 1
	case p.is("bad-severity"):
		a["diagnostics"] = []any{object{"code": "test/x", "severity": "fatal", "source": "test", "message": "m", "location": object{"path": "a"}, "fingerprint": "f"}}
	case p.is("escape-path"):
		a["diagnostics"] = []any{object{"code": "test/x", "severity": "info", "source": "test", "message": "m", "location": object{"path": "../../etc/passwd"}, "fingerprint": "f"}}
	case p.is("truncated"):
		a["coverage"].(object)["truncated"] = true
	case p.is("not-exhaustive"):
		a["coverage"].(object)["exhaustive"] = false
	}
}

func (p *provider) answer(id json.RawMessage, a object) {
	p.result(id, a)
	if p.is("answer-twice") {
		p.result(id, a)
	}
}
