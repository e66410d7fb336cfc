// Package receipt keeps what the host answered: an append-only log of receipts,
// one JSON object a line, and beside it one evidence record a receipt with the
// walls that were found. It knows how records are stored and found again, not
// what they mean.
package receipt

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/schemas"
)

const (
	logName      = "receipts.jsonl"
	evidenceDir  = "evidence"
	maxRecord    = 8 << 20 // bytes of one line or one evidence record
	lockInterval = 2 * time.Millisecond
)

// Record is one line of the log: the receipt, and the whole answer it belongs
// to where there is one.
type Record struct {
	Receipt schemas.Receipt  `json:"receipt"`
	Verdict *schemas.Verdict `json:"verdict,omitzero"`
}

// Log is a directory of receipts. Several processes may use one at a time.
type Log struct{ dir string }

// Open makes the directory where it is missing. Only its owner may read it.
func Open(dir string) (*Log, error) {
	if err := os.MkdirAll(filepath.Join(dir, evidenceDir), 0o700); err != nil {
		return nil, fmt.Errorf("make the receipt log: %w", err)
	}
	return &Log{dir: dir}, nil
}

// NewID makes a receipt id: 128 random bits in hex.
func NewID() string {
	var b [16]byte
	// crypto/rand.Read never fails on Linux (Go 1.24): it ends the program.
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// Append adds a record and its evidence (any value that can be marshalled, or
// nil). A record is wholly there or not at all: a line cut short by a crash is
// ended before the next one is written, and passed over by Find.
func (l *Log) Append(ctx context.Context, r Record, evidence any) error {
	line, err := schemas.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode receipt: %w", err)
	}
	if len(line) > maxRecord {
		return fmt.Errorf("the receipt has %d bytes, over the limit of %d", len(line), maxRecord)
	}
	if evidence != nil {
		if err := l.writeEvidence(r.Receipt.ReceiptID, evidence); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(filepath.Join(l.dir, logName), os.O_CREATE|os.O_RDWR|os.O_APPEND|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("open the receipt log: %w", err)
	}
	defer f.Close()
	if err := lock(ctx, f); err != nil {
		return err
	}
	if err := appendLine(f, line); err != nil {
		return fmt.Errorf("write %s: %w", f.Name(), err)
	}
	return nil
}

func appendLine(f *os.File, line []byte) error {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if size > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, size-1); err != nil {
			return err
		}
		if last[0] != '\n' {
			line = append([]byte{'\n'}, line...)
		}
	}
	if _, err := f.Write(append(line, '\n')); err != nil {
		// Take the torn line back, so that a full disk leaves no half record.
		return errors.Join(err, f.Truncate(size))
	}
	return nil
}

// lock waits for the exclusive lock, which dies with its holder.
func lock(ctx context.Context, f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock the receipt log: %w", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the receipt log: %w", context.Cause(ctx))
		case <-time.After(lockInterval):
		}
	}
}

func (l *Log) writeEvidence(id string, evidence any) error {
	b, err := json.Marshal(evidence, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("encode evidence: %w", err)
	}
	// Like the line that follows, it is not forced to the disk: a receipt that a
	// power cut takes was of a run that it ended. Made new, never over another.
	f, err := os.OpenFile(l.evidencePath(id), os.O_CREATE|os.O_EXCL|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("write evidence: %w", err)
	}
	_, err = f.Write(append(b, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return errors.Join(fmt.Errorf("write evidence: %w", err), os.Remove(f.Name()))
	}
	return nil
}

func (l *Log) evidencePath(id string) string {
	return filepath.Join(l.dir, evidenceDir, id+".json")
}

// Evidence reads the evidence record of a receipt id.
func (l *Log) Evidence(id string) (jsontext.Value, error) {
	if !validID(id) {
		return nil, fmt.Errorf("%q is not a receipt id", id)
	}
	f, err := os.Open(l.evidencePath(id))
	if err != nil {
		return nil, fmt.Errorf("read evidence: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err != nil {
		return nil, fmt.Errorf("read evidence: %w", err)
	}
	if len(b) > maxRecord {
		return nil, fmt.Errorf("the evidence record is over %d bytes", maxRecord)
	}
	return b, nil
}

// ErrNotFound is returned when no record fits.
var ErrNotFound = errors.New("no such receipt")

// Find returns the newest record whose id begins with prefix; an empty prefix
// means the newest of all. A prefix that fits several ids is an error.
func (l *Log) Find(ctx context.Context, prefix string) (Record, error) {
	if prefix != "" && !validID(prefix) {
		return Record{}, fmt.Errorf("%q is not a receipt id: use its hex digits, or the first few", prefix)
	}
	var found Record
	ids := map[string]bool{}
	err := l.each(ctx, func(r Record) error {
		if strings.HasPrefix(r.Receipt.ReceiptID, prefix) {
			found = r
			ids[r.Receipt.ReceiptID] = true
		}
		return nil
	})
	switch {
	case err != nil:
		return Record{}, err
	case len(ids) == 0:
		return Record{}, ErrNotFound
	case prefix != "" && len(ids) > 1:
		return Record{}, fmt.Errorf("%d receipts begin with %s; give more digits", len(ids), prefix)
	}
	return found, nil
}

// List returns the newest n records, newest last.
func (l *Log) List(ctx context.Context, n int) ([]Record, error) {
	var all []Record
	err := l.each(ctx, func(r Record) error {
		all = append(all, r)
		if len(all) > 2*n {
			all = append(all[:0], all[len(all)-n:]...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all[max(0, len(all)-n):], nil
}

// each walks the records from old to new. A line that is no record (cut short
// by a crash) is passed over.
func (l *Log) each(ctx context.Context, fn func(Record) error) error {
	f, err := os.Open(filepath.Join(l.dir, logName))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the receipt log: %w", err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(make([]byte, 64<<10), maxRecord+1)
	for s.Scan() {
		if err := ctx.Err(); err != nil {
			return err
		}
		line := bytes.TrimSpace(s.Bytes())
		if len(line) == 0 {
			continue
		}
		var r Record
		if json.Unmarshal(line, &r, json.RejectUnknownMembers(true)) != nil {
			continue
		}
		if err := fn(r); err != nil {
			return err
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("read the receipt log: %w", err)
	}
	return nil
}

func validID(s string) bool {
	if s == "" || len(s) > 32 {
		return false
	}
	return strings.Trim(s, "0123456789abcdef") == ""
}
