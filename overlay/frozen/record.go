package frozen

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	recordHead = "aspis frozen 1\n"
	maxRecord  = 2 << 30
)

// ErrRecord says that a record is not what was written.
var ErrRecord = errors.New("the record of a frozen directory is not what was written")

const (
	flagRacy = 1 << iota
	flagLinked
)

// Encode writes entries in path order: the line recordHead, for each entry the
// length of what its path shares with the one before and the rest of it, then
// its numbers; at the end the sha256 of all before.
func Encode(entries []Entry) []byte {
	b := make([]byte, 0, 64+64*len(entries))
	b = append(b, recordHead...)
	b = binary.AppendUvarint(b, uint64(len(entries)))
	last := ""
	for _, e := range entries {
		same := 0
		for same < len(last) && same < len(e.Path) && last[same] == e.Path[same] {
			same++
		}
		b = binary.AppendUvarint(b, uint64(same))
		b = appendText(b, e.Path[same:])
		last = e.Path
		flags := uint64(0)
		if e.Racy {
			flags |= flagRacy
		}
		if e.Linked {
			flags |= flagLinked
		}
		for _, n := range []uint64{uint64(e.Mode), uint64(e.UID), uint64(e.GID), uint64(e.Size), e.Ino, flags} {
			b = binary.AppendUvarint(b, n)
		}
		b = binary.AppendVarint(b, e.Mtime)
		b = binary.AppendVarint(b, e.Ctime-e.Mtime)
		b = appendText(b, e.Target)
	}
	sum := sha256.Sum256(b)
	return append(b, sum[:]...)
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Decode reads what Encode wrote.
func Decode(b []byte) ([]Entry, error) {
	if len(b) < len(recordHead)+sha256.Size || len(b) > maxRecord || !bytes.HasPrefix(b, []byte(recordHead)) {
		return nil, ErrRecord
	}
	body, sum := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if got := sha256.Sum256(body); !bytes.Equal(got[:], sum) {
		return nil, ErrRecord
	}
	r := &decoder{b: body[len(recordHead):]}
	n := r.number()
	if n > maxEntries || n > uint64(len(body)) {
		return nil, ErrRecord
	}
	entries := make([]Entry, n)
	last := ""
	for i := range entries {
		e := &entries[i]
		same := r.number()
		if same > uint64(len(last)) {
			return nil, ErrRecord
		}
		e.Path = last[:same] + r.text()
		last = e.Path
		e.Mode, e.UID, e.GID = uint32(r.number()), uint32(r.number()), uint32(r.number())
		e.Size, e.Ino = int64(r.number()), r.number()
		flags := r.number()
		e.Racy, e.Linked = flags&flagRacy != 0, flags&flagLinked != 0
		e.Mtime = r.signed()
		e.Ctime = e.Mtime + r.signed()
		e.Target = r.text()
		if r.bad || i > 0 && !Less(entries[i-1].Path, e.Path) {
			return nil, ErrRecord
		}
	}
	if r.bad || len(r.b) > 0 {
		return nil, fmt.Errorf("%w: it has %d bytes too many", ErrRecord, len(r.b))
	}
	return entries, nil
}

type decoder struct {
	b   []byte
	bad bool
}

func (r *decoder) number() uint64 {
	n, k := binary.Uvarint(r.b)
	if k <= 0 {
		r.b, r.bad = nil, true
		return 0
	}
	r.b = r.b[k:]
	return n
}

func (r *decoder) signed() int64 {
	n, k := binary.Varint(r.b)
	if k <= 0 {
		r.b, r.bad = nil, true
		return 0
	}
	r.b = r.b[k:]
	return n
}

func (r *decoder) text() string {
	n := r.number()
	if n > uint64(len(r.b)) {
		r.b, r.bad = nil, true
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}
