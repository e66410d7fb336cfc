package gitrepo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// OID is the hex of an object id.
type OID string

// Git's file modes.
const (
	ModeFile    = 0o100644
	ModeExec    = 0o100755
	ModeSymlink = 0o120000
	ModeGitlink = 0o160000

	modeTree = 0o040000
)

// maxEntries bounds the files of a tree and the changes between two: a few
// small objects can stand for a tree of any size.
const maxEntries = 4_000_000

// EmptyTree is the id of the tree without entries.
func (r *Repo) EmptyTree() OID {
	if r.format == "sha256" {
		return "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321"
	}
	return "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
}

func validOID(s string) bool {
	if len(s) != 40 && len(s) != 64 {
		return false
	}
	_, err := hex.DecodeString(s)
	return err == nil
}

// TreeEntry is one file of a tree. Path is git's bytes, which may be anything
// but NUL.
type TreeEntry struct {
	Path string
	Mode uint32
	OID  OID
}

// ListTree calls fn for each entry that is not a directory, in git's order,
// until fn returns an error, which it returns. A tree that no checkout could
// have (a path twice, a file that is also a directory, a name like .git) is an
// error of type *DamagedError.
func (r *Repo) ListTree(ctx context.Context, tree OID, fn func(TreeEntry) error) error {
	if tree == r.EmptyTree() {
		return nil
	}
	var order pathOrder
	n := 0
	return r.stream(ctx, "list the tree "+string(tree), []string{"ls-tree", "-r", "-z", "--full-tree", string(tree)}, func(rec []byte) error {
		e, err := parseLsTree(rec)
		if err != nil {
			return err
		}
		if n++; n > maxEntries {
			return &TooLargeError{What: "the tree " + string(tree), Limit: maxEntries}
		}
		if err := order.next(e.Path); err != nil {
			return err
		}
		return fn(e)
	})
}

// parseLsTree reads "<mode> SP <type> SP <oid> TAB <path>".
func parseLsTree(rec []byte) (TreeEntry, error) {
	head, path, ok := bytes.Cut(rec, []byte{'\t'})
	f := strings.Fields(string(head))
	if !ok || len(f) != 3 || len(path) == 0 || !validOID(f[2]) {
		return TreeEntry{}, fmt.Errorf("git listed the odd entry %.100q", rec)
	}
	mode, err := strconv.ParseUint(f[0], 8, 32)
	if err != nil {
		return TreeEntry{}, fmt.Errorf("git listed the odd mode %.20q", f[0])
	}
	e := TreeEntry{Path: string(path), Mode: canonicalMode(uint32(mode)), OID: OID(f[2])}
	return e, safeTreePath(e.Path)
}

// canonicalMode maps the modes of old trees to those that git writes today.
func canonicalMode(m uint32) uint32 {
	if m&0o170000 == 0o100000 {
		if m&0o100 != 0 {
			return ModeExec
		}
		return ModeFile
	}
	return m
}

// maxRecord bounds one NUL-ended record of git's output.
const maxRecord = 1 << 20

// stream runs git and hands on its NUL-ended records one by one.
func (r *Repo) stream(ctx context.Context, doing string, args []string, fn func([]byte) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := r.command(ctx, runOptions{}, args...)
	var errOut limited
	cmd.Stderr = &errOut
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if err := r.start(cmd); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	err = records(pipe, fn)
	if err != nil {
		cancel()
	}
	waitErr := cmd.Wait()
	switch {
	case err != nil:
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", doing, context.Cause(ctx))
	case waitErr != nil:
		return &gitError{doing: doing, stderr: errOut.String(), err: waitErr}
	}
	return nil
}

func records(r io.Reader, fn func([]byte) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), maxRecord)
	s.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		if i := bytes.IndexByte(data, 0); i >= 0 {
			return i + 1, data[:i], nil
		}
		if atEOF && len(data) > 0 {
			return 0, nil, errors.New("git's output ends in the middle of a record")
		}
		return 0, nil, nil
	})
	for s.Scan() {
		if err := fn(s.Bytes()); err != nil {
			return err
		}
	}
	return s.Err()
}
