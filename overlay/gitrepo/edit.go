package gitrepo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// PutBlob stores bytes in the shadow, as they are.
func (r *Repo) PutBlob(ctx context.Context, content io.Reader) (OID, error) {
	out, err := r.run(ctx, runOptions{stdin: content, limit: 1 << 16, doing: "store a blob"}, "hash-object", "-w", "--stdin", "--no-filters")
	if err != nil {
		return "", err
	}
	oid := strings.TrimSpace(string(out))
	if !validOID(oid) {
		return "", &DamagedError{Doing: "store a blob", Detail: fmt.Sprintf("it answered %.60q", oid)}
	}
	return OID(oid), nil
}

// TreeEdit sets a path of a tree, or removes it when OID is empty.
type TreeEdit struct {
	Path string
	Mode uint32
	OID  OID
}

// WriteTree makes a tree that differs from base by edits and by nothing else, in
// the shadow. Their order does not matter: what is removed is removed first, so
// that two files can change places. Edits that cannot all hold, such as a file
// where a directory stays, are an *EditError.
func (r *Repo) WriteTree(ctx context.Context, base OID, edits []TreeEdit) (tree OID, err error) {
	removed, set, err := sortEdits(edits)
	if err != nil {
		return "", err
	}
	if err := r.checkRoom(ctx, base, removed, set); err != nil {
		return "", err
	}
	var info bytes.Buffer
	for path := range removed {
		fmt.Fprintf(&info, "0 %s\t%s\x00", strings.Repeat("0", len(r.EmptyTree())), path)
	}
	for _, e := range set {
		fmt.Fprintf(&info, "%o %s\t%s\x00", e.Mode, e.OID, e.Path)
	}
	err = r.inScratch(func(dir string) error {
		index := filepath.Join(dir, "index")
		if base != r.EmptyTree() {
			if _, err := r.run(ctx, runOptions{index: index, limit: 1 << 16, doing: "read the tree " + string(base)}, "read-tree", string(base)); err != nil {
				return err
			}
		}
		if info.Len() > 0 {
			if _, err := r.run(ctx, runOptions{index: index, stdin: &info, limit: 1 << 16, doing: "change a tree"}, "update-index", "-z", "--index-info"); err != nil {
				return err
			}
		}
		tree, err = r.writeTree(ctx, index)
		return err
	})
	return tree, err
}

// sortEdits parts edits into what is removed and what is set, by path.
func sortEdits(edits []TreeEdit) (removed map[string]bool, set []TreeEdit, err error) {
	removed = map[string]bool{}
	for _, e := range edits {
		if err := safeTreePath(e.Path); err != nil {
			return nil, nil, err
		}
		switch {
		case strings.ContainsRune(e.Path, 0):
			return nil, nil, &EditError{Path: e.Path, Detail: "holds a NUL"}
		case e.OID == "":
			removed[e.Path] = true
		case !validOID(string(e.OID)) || !slices.Contains([]uint32{ModeFile, ModeExec, ModeSymlink, ModeGitlink}, e.Mode):
			return nil, nil, &EditError{Path: e.Path, Detail: fmt.Sprintf("is to have the mode %o and the object %.70q", e.Mode, e.OID)}
		default:
			set = append(set, e)
		}
	}
	slices.SortFunc(set, func(a, b TreeEdit) int { return strings.Compare(a.Path, b.Path) })
	var order pathOrder
	for _, e := range set {
		if order.next(e.Path) != nil {
			return nil, nil, &EditError{Path: e.Path, Detail: "is set twice, or below a file that is set too"}
		}
	}
	return removed, set, nil
}

// checkRoom sees that nothing of base would have to go to make room for what is
// set, but what is removed.
func (r *Repo) checkRoom(ctx context.Context, base OID, removed map[string]bool, set []TreeEdit) error {
	read := map[OID]map[string]TreeEntry{}
	for _, e := range set {
		at := TreeEntry{Mode: modeTree, OID: base}
		path := ""
		for seg := range strings.SplitSeq(e.Path, "/") {
			if at.Mode != modeTree && !removed[path] {
				return &EditError{Path: e.Path, Detail: fmt.Sprintf("lies below %q, which is a file", path)}
			}
			if at.Mode != modeTree {
				at = TreeEntry{} // nothing is left there
				break
			}
			dir, err := r.directory(ctx, at.OID, read)
			if err != nil {
				return err
			}
			if path = strings.TrimPrefix(path+"/"+seg, "/"); dir[seg].OID == "" {
				at = TreeEntry{}
				break
			}
			at = dir[seg]
		}
		if at.Mode != modeTree {
			continue
		}
		if err := r.ListTree(ctx, at.OID, func(f TreeEntry) error {
			if below := e.Path + "/" + f.Path; !removed[below] {
				return &EditError{Path: e.Path, Detail: fmt.Sprintf("is a directory, in which %q stays", below)}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// directory reads one directory, by name, and keeps it.
func (r *Repo) directory(ctx context.Context, tree OID, read map[OID]map[string]TreeEntry) (map[string]TreeEntry, error) {
	if dir, ok := read[tree]; ok || tree == r.EmptyTree() {
		return dir, nil
	}
	raw, err := r.readObject(ctx, tree, "tree", maxTree)
	if err != nil {
		return nil, err
	}
	dir := map[string]TreeEntry{}
	read[tree] = dir
	return dir, eachEntry(raw, len(tree)/2, func(name string, mode uint32, oid OID) error {
		dir[name] = TreeEntry{Path: name, Mode: mode, OID: oid}
		return nil
	})
}
