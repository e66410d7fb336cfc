package provider

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// tooLongError reports a line that was passed over.
type tooLongError struct{ limit int }

func (e *tooLongError) Error() string {
	return fmt.Sprintf("a line is longer than %d bytes", e.limit)
}

// lines splits a stream into lines and holds no more than limit bytes of one.
type lines struct {
	in    *bufio.Reader
	limit int
	held  []byte
}

func newLines(in io.Reader, limit int) *lines {
	return &lines{in: bufio.NewReaderSize(in, 64<<10), limit: limit}
}

// next returns a line without its end; it is valid until the next call. A line
// over the limit is read to its end, dropped and reported as *tooLongError. The
// last line needs no newline.
func (l *lines) next() ([]byte, error) {
	// What one large answer needed is not kept for all that follow.
	if cap(l.held) > 1<<20 {
		l.held = nil
	}
	l.held = l.held[:0]
	size := 0
	for {
		part, err := l.in.ReadSlice('\n')
		size += len(part)
		whole := err == nil || errors.Is(err, io.EOF)
		if whole && size == len(part) && size > 0 && size <= l.limit {
			return bytes.TrimRight(part, "\r\n"), nil
		}
		if size <= l.limit {
			l.held = append(l.held, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case !whole:
			return nil, err
		case size == 0:
			return nil, err
		case size > l.limit:
			return nil, &tooLongError{limit: l.limit}
		default:
			return bytes.TrimRight(l.held, "\r\n"), nil
		}
	}
}
