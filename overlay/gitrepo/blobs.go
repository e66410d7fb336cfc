package gitrepo

import (
	"bufio"
	"context"
	"crypto/sha1" //nolint:gosec // it is what git names objects by
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// BlobReader reads objects through one git cat-file. It is for one goroutine.
type BlobReader struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	errOut *limited
	cancel context.CancelFunc

	asked   []OID // names that were asked for ahead and not yet answered
	partial bool  // the clone is a partial one
	last    OID   // of the last answer
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
			widen(out)
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

// widen lets git write on while what it wrote is being used. Where the pipe
// cannot be made larger it stays as it is.
func widen(pipe io.ReadCloser) {
	f, ok := pipe.(*os.File)
	if !ok {
		return
	}
	if c, err := f.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, 1<<20) })
	}
}

// MaxAhead is how many blobs can be asked for ahead: so many names fit into a
// pipe, so that asking never waits.
const MaxAhead = 512

// Ask asks for blobs that will be read next, in this order, so that git finds
// the next while one is being used. Every one of them must be taken by Read.
func (b *BlobReader) Ask(oids []OID) error {
	if len(b.asked)+len(oids) > MaxAhead {
		return fmt.Errorf("ask for %d objects at once: at most %d can be", len(b.asked)+len(oids), MaxAhead)
	}
	var names strings.Builder
	for _, oid := range oids {
		if !validOID(string(oid)) {
			return &UnknownRevisionError{Rev: string(oid)}
		}
		names.WriteString(string(oid))
		names.WriteByte('\n')
	}
	if _, err := io.WriteString(b.in, names.String()); err != nil {
		return b.broken(err)
	}
	b.asked = append(b.asked, oids...)
	return nil
}

// Open asks for one object by a name that holds no newline and returns its
// type, its size and its bytes, which must be read to the end before the next
// call. At the end it is seen whether the bytes are those that the id stands for,
// which git itself does not look at.
func (b *BlobReader) Open(name string) (kind string, size int64, content io.Reader, err error) {
	if strings.ContainsAny(name, "\n\r") {
		return "", 0, nil, &UnknownRevisionError{Rev: name}
	}
	if len(b.asked) > 0 {
		if string(b.asked[0]) != name {
			return "", 0, nil, fmt.Errorf("%s was asked for before %s", b.asked[0], name)
		}
		b.asked = b.asked[1:]
		return b.answer(name)
	}
	if _, err := io.WriteString(b.in, name+"\n"); err != nil {
		return "", 0, nil, b.broken(err)
	}
	return b.answer(name)
}

// answer reads what git says to one name.
func (b *BlobReader) answer(name string) (kind string, size int64, content io.Reader, err error) {
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
	o := &object{b: b, left: size, sum: sha1.New()} //nolint:gosec // it is what git names objects by
	if len(f[0]) == 64 {
		o.sum = sha256.New()
	}
	fmt.Fprintf(o.sum, "%s %d\x00", f[1], size)
	return f[1], size, o, nil
}

// object reads the bytes of one answer and the newline behind them.
type object struct {
	b    *BlobReader
	left int64
	done bool
	sum  hash.Hash // of what the id stands for
}

func (o *object) Read(p []byte) (int, error) {
	if o.left == 0 {
		if !o.done {
			o.done = true
			if c, err := o.b.out.ReadByte(); err != nil || c != '\n' {
				return 0, o.b.broken(errors.New("an object does not end where it should"))
			}
			if got := OID(hex.EncodeToString(o.sum.Sum(nil))); got != o.b.last {
				return 0, &DamagedError{Doing: "read the object " + string(o.b.last), Detail: "its content is that of " + string(got)}
			}
		}
		return 0, io.EOF
	}
	n, err := o.b.out.Read(p[:min(int64(len(p)), o.left)])
	o.left -= int64(n)
	o.sum.Write(p[:n])
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
