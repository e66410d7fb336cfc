package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
)

// recorded is a line that came from the host, with the method of the callback
// that it answers.
type recorded struct {
	Answers string `json:"answers,omitempty"`
	Line    string `json:"line"`
}

// maxRecorded bounds what is kept for the findings, in lines.
const maxRecorded = 200

// keep notes a line where "record" asks for it: in memory, to be told as
// findings, or as JSON lines in the file that record=PATH names.
func (p *provider) keep(line []byte, m map[string]json.RawMessage) {
	path, ok := p.behave["record"]
	if !ok {
		return
	}
	r := recorded{Line: string(line)}
	if m["method"] == nil {
		var id string
		_ = json.Unmarshal(m["id"], &id)
		r.Answers = p.asked[id]
	}
	if path == "" {
		if len(p.kept) < maxRecorded {
			p.kept = append(p.kept, r)
		}
		return
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testprovider: record:", err)
		os.Exit(3)
	}
	defer f.Close()
	b, _ := json.Marshal(r)
	_, _ = f.Write(append(b, '\n'))
}

// recordings are the lines received, as findings that no decision looks at: the
// message is the line, the help text the method that it answers.
func (p *provider) recordings() []any {
	out := []any{}
	for i, r := range p.kept {
		sum := sha256.Sum256([]byte(r.Line))
		d := object{"code": "test/record", "severity": "info", "source": "test", "message": r.Line,
			"location": object{"path": "record"}, "fingerprint": fmt.Sprint(i, "-", hex.EncodeToString(sum[:8])), "introduced": true}
		if r.Answers != "" {
			d["help"] = r.Answers
		}
		if len(r.Line) > 60_000 {
			continue // longer than a finding may be
		}
		out = append(out, d)
	}
	p.kept = nil
	return out
}
