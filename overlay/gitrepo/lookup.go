package gitrepo

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// lookup is one git cat-file that stays, since starting a git costs several
// milliseconds and asking it a fraction of one. It reads refs anew for every
// question and looks for new packs where it misses an object.
type lookup struct {
	mu     sync.Mutex
	reader *BlobReader
}

// maxDrain is how much of an unwanted answer is read to stay in step with the
// process, in bytes; with more it is cheaper to start another.
const maxDrain = 16 << 20

// object asks for one object by any name that git understands and hands its
// content to fn, which may leave some of it. It gives the object's id. A name
// that means nothing is a *MissingObjectError.
func (r *Repo) object(ctx context.Context, name string, fn func(kind string, size int64, content io.Reader) error) (OID, error) {
	if strings.ContainsAny(name, "\n\r\x00") {
		return "", &UnknownRevisionError{Rev: name}
	}
	l := &r.lookup
	l.mu.Lock()
	defer l.mu.Unlock()
	oid, asked, err := r.askKept(ctx, name, fn)
	if !asked && err != nil && ctx.Err() == nil {
		// The process that was kept has ended since; a new one may answer.
		oid, _, err = r.askKept(ctx, name, fn)
	}
	var missing *MissingObjectError
	if errors.As(err, &missing) && r.hasLoose(name) {
		return "", &DamagedError{Doing: "read the object " + name, Detail: "its file is there but is not what it should be"}
	}
	return oid, err
}

// askKept asks the process that is kept, or a new one. A process that answered
// otherwise than by an object, or by none, is not kept; answered is false where
// it was an old one and gave no answer.
func (r *Repo) askKept(ctx context.Context, name string, fn func(string, int64, io.Reader) error) (oid OID, answered bool, err error) {
	if ctx.Err() != nil {
		return "", true, context.Cause(ctx)
	}
	l := &r.lookup
	fresh := l.reader == nil
	if fresh {
		// It is kept for longer than this question.
		if l.reader, err = r.Blobs(context.WithoutCancel(ctx)); err != nil {
			return "", true, err
		}
	}
	reader := l.reader
	// A read waits for a process: ending it ends the wait.
	stop := context.AfterFunc(ctx, reader.cancel)
	kind, size, content, err := reader.Open(name)
	var missing *MissingObjectError
	answered = fresh || err == nil || errors.As(err, &missing)
	if err == nil {
		err = take(kind, size, content, fn)
	}
	if !stop() || (err != nil && !errors.As(err, &missing)) {
		l.reader = nil
		cerr := reader.Close()
		if ctx.Err() != nil {
			return "", true, context.Cause(ctx)
		}
		if err == nil {
			err = cerr
		}
	}
	if err != nil {
		return "", answered, err
	}
	return reader.last, true, nil
}

// take hands an answer on and reads what is left of it.
func take(kind string, size int64, content io.Reader, fn func(string, int64, io.Reader) error) error {
	if err := fn(kind, size, content); err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, io.LimitReader(content, maxDrain))
	if err == nil && n == maxDrain {
		err = errors.New("an answer of git is longer than what is wanted of it")
	}
	return err
}

// hasLoose tells whether an object that git calls missing has a file.
func (r *Repo) hasLoose(name string) bool {
	if !validOID(name) {
		return false
	}
	_, err := os.Lstat(filepath.Join(r.place.common, "objects", name[:2], name[2:]))
	return err == nil
}

// fewObjects is up to how many the process that is kept is asked one by one.
const fewObjects = 64

// objects hands the content of each object to fn, which reads all of it.
func (r *Repo) objects(ctx context.Context, oids []OID, fn func(oid OID, kind string, size int64, content io.Reader) error) error {
	if len(oids) > fewObjects {
		return r.manyObjects(ctx, oids, fn)
	}
	for _, oid := range oids {
		if _, err := r.object(ctx, string(oid), func(kind string, size int64, content io.Reader) error {
			return fn(oid, kind, size, content)
		}); err != nil {
			return err
		}
	}
	return nil
}

// manyObjects asks for all at once, so that git reads one while another is
// taken.
func (r *Repo) manyObjects(ctx context.Context, oids []OID, fn func(oid OID, kind string, size int64, content io.Reader) error) (err error) {
	reader, err := r.Blobs(ctx)
	if err != nil {
		return err
	}
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		names := bufio.NewWriter(reader.in)
		for _, oid := range oids {
			fmt.Fprintln(names, oid)
		}
		_ = names.Flush() // what was not asked is not answered
	}()
	defer func() {
		reader.cancel()
		<-asked
		if cerr := reader.Close(); err == nil {
			err = cerr
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
	}()
	for _, oid := range oids {
		kind, size, content, err := reader.answer(string(oid))
		if err == nil {
			err = take(kind, size, content, func(kind string, size int64, content io.Reader) error { return fn(oid, kind, size, content) })
		}
		var missing *MissingObjectError
		if errors.As(err, &missing) && r.hasLoose(string(oid)) {
			return &DamagedError{Doing: "read the object " + string(oid), Detail: "its file is there but is not what it should be"}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// closeLookup ends the process.
func (r *Repo) closeLookup() error {
	r.lookup.mu.Lock()
	defer r.lookup.mu.Unlock()
	if r.lookup.reader == nil {
		return nil
	}
	reader := r.lookup.reader
	r.lookup.reader = nil
	return reader.Close()
}

// commitObject is what is needed of a commit.
type commitObject struct {
	tree    OID
	parents []OID
}

// maxCommit bounds what is read of one commit, in bytes; its head comes first.
const maxCommit = 1 << 20

// readCommit resolves a name to a commit and reads it.
func (r *Repo) readCommit(ctx context.Context, name string) (c commitObject, err error) {
	_, err = r.object(ctx, name+"^{commit}", func(kind string, _ int64, content io.Reader) error {
		head, err := io.ReadAll(io.LimitReader(content, maxCommit))
		if err != nil {
			return err
		}
		for line := range bytes.Lines(head) {
			key, value, ok := strings.Cut(strings.TrimSuffix(string(line), "\n"), " ")
			if !ok || (key != "tree" && key != "parent") {
				break
			}
			if !validOID(value) {
				return &DamagedError{Doing: "read a commit", Detail: "it names no objects"}
			}
			if key == "tree" {
				c.tree = OID(value)
			} else {
				c.parents = append(c.parents, OID(value))
			}
		}
		if kind != "commit" || c.tree == "" {
			return &DamagedError{Doing: "read a commit", Detail: "it has no tree"}
		}
		return nil
	})
	return c, err
}

// maxAncestors bounds the commits that are looked at before git is asked.
const maxAncestors = 256

// isAncestor tells whether old can be reached from young within a short
// distance; false says nothing. An ancestor is the merge base of the two.
func (r *Repo) isAncestor(ctx context.Context, old, young OID) bool {
	// The history of a shallow clone is cut where git says, not where its
	// objects end.
	if _, err := os.Stat(filepath.Join(r.place.common, "shallow")); err == nil {
		return false
	}
	seen := map[OID]bool{young: true}
	queue := []OID{young}
	for n := 0; len(queue) > 0 && n < maxAncestors; n++ {
		if queue[0] == old {
			return true
		}
		c, err := r.readCommit(ctx, string(queue[0]))
		if err != nil {
			return false
		}
		queue = queue[1:]
		for _, p := range c.parents {
			if p == old {
				return true
			}
			if !seen[p] {
				seen[p] = true
				queue = append(queue, p)
			}
		}
	}
	return false
}
