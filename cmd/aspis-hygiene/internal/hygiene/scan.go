package hygiene

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/aspis-dev/aspis/schemas"
)

// maxScanned bounds how much of one text is looked at, in bytes. What lies
// behind makes the check incomplete, never clean.
const maxScanned = 16 << 20

// scan asks for the content of each source and applies the rules to it. What
// the host will not give is a loss, not an error.
func (r *run) scan(ctx context.Context, sources []source) ([]hit, error) {
	by := map[schemas.BlobRef][]source{}
	var refs []schemas.BlobRef
	for _, s := range sources {
		if by[s.ref] == nil {
			refs = append(refs, s.ref)
		}
		by[s.ref] = append(by[s.ref], s)
	}
	var hits []hit
	err := r.w.ReadBlobs(ctx, refs, func(ref schemas.BlobRef, content []byte, refused *schemas.Error) error {
		for _, s := range by[ref] {
			if err := ctx.Err(); err != nil {
				return err
			}
			if refused != nil {
				r.lose("%s could not be read: %s", s.path, refused.Message)
				// It may be its size that the host refuses.
				hits = append(hits, r.kept(s.path, r.large(s, s.size))...)
				continue
			}
			found, err := r.file(s, content)
			if err != nil {
				return err
			}
			hits = append(hits, r.kept(s.path, found)...)
		}
		r.report()
		return nil
	})
	return hits, err
}

// kept drops the findings of rules that are off, and of any one rule in one
// file those over the bound.
func (r *run) kept(path string, found []hit) []hit {
	count := map[string]int{}
	out := found[:0]
	for _, h := range found {
		if !r.rules.on[h.rule] {
			continue
		}
		if count[h.rule]++; count[h.rule] > maxHits {
			if count[h.rule] == maxHits+1 {
				r.lose("%s has more than %d findings of the rule %s", path, maxHits, h.rule)
			}
			continue
		}
		out = append(out, h)
	}
	return out
}

// file applies the rules to one file. A parser that breaks down on it leaves
// that file unchecked, and says so.
func (r *run) file(s source, content []byte) (hits []hit, err error) {
	r.files++
	r.bytes += int64(len(content))
	if s.kind == link {
		return linkHits(s.path, content), nil
	}
	if s.fresh {
		h := hit{rule: ruleExecutable, path: s.path, key: s.origin, message: "the file can now be run"}
		if bytes.HasPrefix(content, []byte("#!")) {
			h.severity = schemas.SeverityInfo // a script is made to be run
		}
		hits = append(hits, h)
	}
	hits = append(hits, r.large(s, int64(len(content)))...)
	if format := program(content); format != "" {
		hits = append(hits, hit{rule: ruleProgram, path: s.path, key: s.origin, message: "a compiled program (" + format + ")"})
	}
	if r.rules.on[rulePrivateKey] {
		named, err := r.secrets.named(s.path)
		if err != nil {
			return nil, err
		}
		hits = append(hits, named...)
	}
	if isBinary(content) {
		return hits, nil
	}
	text, err := r.text(s, content)
	return append(hits, text...), err
}

func (r *run) large(s source, size int64) []hit {
	if size <= r.cfg.MaxFileBytes {
		return nil
	}
	return []hit{{rule: ruleLarge, path: s.path, key: s.origin, message: fmt.Sprintf("the file has %d bytes, over the limit of %d", size, r.cfg.MaxFileBytes)}}
}

// text applies the rules for texts.
func (r *run) text(s source, content []byte) (hits []hit, err error) {
	if syntaxRule(s.path) != "" && r.rules.on[syntaxRule(s.path)] {
		hits = r.syntax(s, content)
	}
	if len(content) > maxScanned {
		r.lose("only the first %d of %d bytes of %s were looked at", maxScanned, len(content), s.path)
		content = content[:maxScanned]
	}
	hits = append(hits, conflicts(s.path, content)...)
	hits = append(hits, hidden(s.path, content)...)
	if r.rules.on[ruleSecret] || r.rules.on[rulePrivateKey] {
		found, err := r.secrets.scan(s.path, content, newLayout(content))
		if err != nil {
			return nil, err
		}
		hits = append(hits, found...)
	}
	return hits, nil
}

func (r *run) syntax(s source, content []byte) (hits []hit) {
	defer func() {
		if p := recover(); p != nil {
			hits = nil
			r.lose("the syntax of %s could not be checked: its parser failed", s.path)
		}
	}()
	hits, skipped := parsed(s.path, s.origin, content)
	if skipped != "" {
		r.lose("the syntax of %s was not checked: %s", s.path, skipped)
	}
	return hits
}

// lose notes what could not be looked at; the check is then incomplete.
func (r *run) lose(format string, args ...any) {
	r.lostCount++
	if len(r.lost) < maxLost {
		r.lost = append(r.lost, degradation(schemas.ReasonIncomplete, fmt.Sprintf(format, args...)))
	}
}

// maxLost bounds the losses that are told apart.
const maxLost = 50

func degradation(reason schemas.DegradationReason, detail string) schemas.Degradation {
	return schemas.Degradation{Source: ID, Reason: reason, Detail: detail, Capability: schemas.Check}
}

// report tells the host from time to time that the check goes on.
func (r *run) report() {
	if time.Since(r.reported) < time.Second {
		return
	}
	r.reported = time.Now()
	r.w.Progress(min(99, 100*float64(r.files)/float64(max(r.planned, 1))), fmt.Sprintf("%d files", r.files))
}
