package gitrepo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// maxTree bounds one directory of a tree, in bytes as git stores it.
const maxTree = 64 << 20

// BlobAt reads a file of a tree, of at most limit bytes; ok is false when the
// tree has none at this path. A path that the tree does name, but whose objects
// cannot be had, is an error and never taken for an absent file.
func (r *Repo) BlobAt(ctx context.Context, tree OID, path string, limit int64) (content []byte, ok bool, err error) {
	at, mode := tree, uint32(modeTree)
	for seg := range strings.SplitSeq(path, "/") {
		if mode != modeTree {
			return nil, false, nil
		}
		if at, mode, err = r.child(ctx, at, seg); err != nil {
			return nil, false, fmt.Errorf("look for %q in the tree %s: %w", path, tree, err)
		}
		if at == "" {
			return nil, false, nil
		}
	}
	if mode == modeTree || mode == ModeGitlink {
		return nil, false, fmt.Errorf("%q in the tree %s is a directory; it must be a file", path, tree)
	}
	content, err = r.readObject(ctx, at, "blob", limit)
	if err != nil {
		return nil, false, fmt.Errorf("read %q of the tree %s: %w", path, tree, err)
	}
	return content, true, nil
}

// readObject reads a whole object of a kind, of at most limit bytes.
func (r *Repo) readObject(ctx context.Context, oid OID, want string, limit int64) (content []byte, err error) {
	_, err = r.object(ctx, string(oid), func(kind string, size int64, body io.Reader) (err error) {
		if kind != want {
			return &DamagedError{Doing: "read the " + want + " " + string(oid), Detail: "it is a " + kind}
		}
		if size > limit {
			return fmt.Errorf("the %s %s has %d bytes, over the limit of %d", want, oid, size, limit)
		}
		content, err = io.ReadAll(body)
		return err
	})
	return content, err
}

// child finds a name in one directory; the id is "" where it has none.
func (r *Repo) child(ctx context.Context, tree OID, name string) (oid OID, mode uint32, err error) {
	if tree == r.EmptyTree() {
		return "", 0, nil
	}
	raw, err := r.readObject(ctx, tree, "tree", maxTree)
	if err != nil {
		return "", 0, err
	}
	err = eachEntry(raw, len(tree)/2, func(entry string, m uint32, id OID) error {
		if entry != name {
			return nil
		}
		if oid != "" {
			return &DamagedError{Doing: "use the tree " + string(tree), Detail: fmt.Sprintf("it holds %q twice", name)}
		}
		oid, mode = id, m
		return nil
	})
	return oid, mode, err
}

// eachEntry reads a tree object: "<mode in octal> SP <name> NUL <id>" and again.
func eachEntry(raw []byte, idBytes int, fn func(name string, mode uint32, oid OID) error) error {
	for len(raw) > 0 {
		head, rest, ok := bytes.Cut(raw, []byte{0})
		digits, name, space := bytes.Cut(head, []byte{' '})
		mode, err := strconv.ParseUint(string(digits), 8, 32)
		if !ok || !space || err != nil || len(name) == 0 || len(rest) < idBytes {
			return &DamagedError{Doing: "read a tree", Detail: "its entries are malformed"}
		}
		if err := fn(string(name), canonicalMode(uint32(mode)), OID(fmt.Sprintf("%x", rest[:idBytes]))); err != nil {
			return err
		}
		raw = rest[idBytes:]
	}
	return nil
}

// safeTreePath refuses what only a crafted tree can hold.
func safeTreePath(path string) error {
	for seg := range strings.SplitSeq(path, "/") {
		if seg == "" || seg == "." || seg == ".." || strings.EqualFold(seg, ".git") {
			return &DamagedError{Doing: "use a tree", Detail: fmt.Sprintf("it holds the path %q, which no checkout could have", path)}
		}
	}
	return nil
}

// checkDirs looks at every directory of a tree in which something has changed.
// A diff is no sign of two entries of one name, one of which was there before.
func (r *Repo) checkDirs(ctx context.Context, tree OID, changes []RawChange) error {
	changed := map[string]bool{"": true}
	for _, c := range changes {
		for _, p := range []string{c.Path, c.From} {
			for i := strings.LastIndexByte(p, '/'); i >= 0 && !changed[p[:i]]; i = strings.LastIndexByte(p[:i], '/') {
				changed[p[:i]] = true
			}
		}
	}
	return r.checkDir(ctx, tree, "", changed)
}

func (r *Repo) checkDir(ctx context.Context, tree OID, dir string, changed map[string]bool) error {
	if tree == r.EmptyTree() {
		return nil
	}
	raw, err := r.readObject(ctx, tree, "tree", maxTree)
	if err != nil {
		return err
	}
	type below struct {
		path string
		oid  OID
	}
	var next []below
	var order pathOrder
	err = eachEntry(raw, len(tree)/2, func(name string, mode uint32, oid OID) error {
		// So that a directory has its place among the paths of files.
		at := name
		if mode == modeTree {
			at += "/"
		}
		if err := order.next(at); err != nil {
			return fmt.Errorf("in the directory %q: %w", dir, err)
		}
		path := name
		if dir != "" {
			path = dir + "/" + name
		}
		if mode == modeTree && changed[path] {
			next = append(next, below{path, oid})
		}
		return nil
	})
	for _, b := range next {
		if err != nil {
			break
		}
		err = r.checkDir(ctx, b.oid, b.path, changed)
	}
	return err
}

// pathOrder checks that paths come as a sound tree gives them: in strict byte
// order, and none of them as a file and as a directory.
type pathOrder struct {
	last  string
	files []string // those that the last path begins with
}

func (o *pathOrder) next(path string) error {
	if path <= o.last {
		return &DamagedError{Doing: "use a tree", Detail: fmt.Sprintf("it holds %q twice or out of order", path)}
	}
	for len(o.files) > 0 && !strings.HasPrefix(path, o.files[len(o.files)-1]) {
		o.files = o.files[:len(o.files)-1]
	}
	for _, f := range o.files {
		if path[len(f)] == '/' {
			return &DamagedError{Doing: "use a tree", Detail: fmt.Sprintf("it holds %q as a file and as a directory", f)}
		}
	}
	o.last, o.files = path, append(o.files, path)
	return nil
}
