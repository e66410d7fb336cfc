package gitrepo

import (
	"bytes"
	"context"
	"fmt"
	"strings"
)

// Conversion says how a file's bytes in the worktree differ from git's.
type Conversion struct {
	// Bytes is true where line endings, an encoding or $Id$ may be converted.
	Bytes bool
	// Filter names a filter (such as lfs) that git would run, and aspis does not.
	Filter string
}

// conversionAttributes are those that change bytes on their way into the worktree
// (gitattributes(5)).
var conversionAttributes = []string{"text", "eol", "crlf", "ident", "working-tree-encoding", "filter"}

// Conversions tells of which of paths git converts the bytes on checkout. Those
// that it leaves alone are not in the answer.
func (r *Repo) Conversions(ctx context.Context, paths []string) (map[string]Conversion, error) {
	out := map[string]Conversion{}
	if len(paths) == 0 || r.place.root == "" {
		return out, nil
	}
	s, err := r.readSettings(ctx)
	if err != nil {
		return nil, err
	}
	always := s.yes("core.autocrlf")
	var in bytes.Buffer
	for _, p := range paths {
		if strings.ContainsRune(p, 0) {
			return nil, &EditError{Path: p, Detail: "holds a NUL"}
		}
		in.WriteString(p)
		in.WriteByte(0)
		if always {
			out[p] = Conversion{Bytes: true}
		}
	}
	var answer []byte
	if err := r.withIndex(ctx, func(index string) error {
		answer, err = r.run(ctx, runOptions{index: index, stdin: &in, doing: "read attributes"}, append([]string{"check-attr", "-z", "--stdin"}, conversionAttributes...)...)
		return err
	}); err != nil {
		return nil, err
	}
	fields := strings.Split(strings.TrimSuffix(string(answer), "\x00"), "\x00")
	if len(fields) != 3*len(paths)*len(conversionAttributes) {
		return nil, &DamagedError{Doing: "read attributes", Detail: fmt.Sprintf("it answered %d fields", len(fields))}
	}
	for i := 0; i+2 < len(fields); i += 3 {
		path, name, value := fields[i], fields[i+1], fields[i+2]
		if value == "unspecified" || value == "unset" {
			continue
		}
		c := out[path]
		if name == "filter" {
			c.Filter = value
		} else {
			c.Bytes = true
		}
		out[path] = c
	}
	return out, nil
}

// AsCheckedOut gives a blob's bytes as git would write them to a path of the
// worktree. No filter is run.
func (r *Repo) AsCheckedOut(ctx context.Context, oid OID, path string, limit int64) (content []byte, err error) {
	if !validOID(string(oid)) {
		return nil, &UnknownRevisionError{Rev: string(oid)}
	}
	err = r.withIndex(ctx, func(index string) error {
		content, err = r.run(ctx, runOptions{index: index, limit: limit, doing: fmt.Sprintf("convert %q", path)}, "cat-file", "--filters", "--path="+path, string(oid))
		return err
	})
	return content, err
}
