package gitrepo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"
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

// BlobReader reads objects through one git cat-file. It is for one goroutine.
type BlobReader struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	errOut *limited
	cancel context.CancelFunc

	partial bool // the clone is a partial one
	last    OID  // of the last answer
}

// Blobs starts a reader; Close must be called.
func (r *Repo) Blobs(ctx context.Context) (*BlobReader, error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := r.command(ctx, runOptions{}, "cat-file", "--batch")
	b := &BlobReader{cmd: cmd, errOut: &limited{}, cancel: cancel, partial: r.isPartial()}
	cmd.Stderr = b.errOut
	var err error
	if b.in, err = cmd.StdinPipe(); err == nil {
		var out io.ReadCloser
		if out, err = cmd.StdoutPipe(); err == nil {
			b.out = bufio.NewReaderSize(out, 256<<10)
			err = r.start(cmd)
		}
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("read objects: %w", err)
	}
	return b, nil
}

// Open asks for one object by a name that holds no newline and returns its
// type, its size and its bytes, which must be read to the end before the next
// call.
func (b *BlobReader) Open(name string) (kind string, size int64, content io.Reader, err error) {
	if strings.ContainsAny(name, "\n\r") {
		return "", 0, nil, &UnknownRevisionError{Rev: name}
	}
	if _, err := io.WriteString(b.in, name+"\n"); err != nil {
		return "", 0, nil, b.broken(err)
	}
	head, err := b.out.ReadString('\n')
	if err != nil {
		return "", 0, nil, b.broken(err)
	}
	head = strings.TrimSuffix(head, "\n")
	if strings.HasSuffix(head, " missing") || strings.HasSuffix(head, " ambiguous") {
		return "", 0, nil, &MissingObjectError{Name: name, Ambiguous: strings.HasSuffix(head, " ambiguous"), Partial: b.partial}
	}
	f := strings.Fields(head)
	if len(f) != 3 {
		return "", 0, nil, b.broken(fmt.Errorf("odd answer %.100q", head))
	}
	if size, err = strconv.ParseInt(f[2], 10, 64); err != nil || size < 0 {
		return "", 0, nil, b.broken(fmt.Errorf("odd size %.20q", f[2]))
	}
	if b.last = OID(f[0]); !validOID(f[0]) {
		return "", 0, nil, b.broken(fmt.Errorf("odd id %.80q", f[0]))
	}
	return f[1], size, &object{b: b, left: size}, nil
}

// object reads the bytes of one answer and the newline behind them.
type object struct {
	b    *BlobReader
	left int64
	done bool
}

func (o *object) Read(p []byte) (int, error) {
	if o.left == 0 {
		if !o.done {
			o.done = true
			if c, err := o.b.out.ReadByte(); err != nil || c != '\n' {
				return 0, o.b.broken(errors.New("an object does not end where it should"))
			}
		}
		return 0, io.EOF
	}
	n, err := o.b.out.Read(p[:min(int64(len(p)), o.left)])
	o.left -= int64(n)
	if errors.Is(err, io.EOF) {
		err = o.b.broken(io.ErrUnexpectedEOF)
	}
	return n, err
}

// Read copies a blob to w. An object that is no blob, or over limit bytes (0
// means no limit), is an error.
func (b *BlobReader) Read(oid OID, w io.Writer, limit int64) (int64, error) {
	kind, size, content, err := b.Open(string(oid))
	if err != nil {
		return 0, err
	}
	if kind != "blob" || (limit > 0 && size > limit) {
		if _, err := io.Copy(io.Discard, content); err != nil {
			return 0, err
		}
		if kind != "blob" {
			return 0, &DamagedError{Doing: "read the blob " + string(oid), Detail: "it is a " + kind}
		}
		return 0, fmt.Errorf("the blob %s has %d bytes, over the limit of %d", oid, size, limit)
	}
	return io.Copy(w, content)
}

func (b *BlobReader) broken(err error) error {
	detail := strings.TrimSpace(b.errOut.String())
	if detail == "" {
		detail = err.Error()
	}
	return &DamagedError{Doing: "read objects", Detail: fmt.Sprintf("%q", detail)}
}

// Close ends the reader.
func (b *BlobReader) Close() error {
	defer b.cancel()
	if err := b.in.Close(); err != nil {
		return fmt.Errorf("end git cat-file: %w", err)
	}
	timer := time.AfterFunc(2*time.Second, b.cancel)
	defer timer.Stop()
	_, _ = io.Copy(io.Discard, b.out)
	_ = b.cmd.Wait() // what it had to say was read; a signal from us is no news
	return nil
}
