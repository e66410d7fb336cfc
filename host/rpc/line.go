package rpc

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

type tooLongError struct{ max int }

func (e *tooLongError) Error() string {
	return fmt.Sprintf("a line is longer than %d bytes", e.max)
}

// lineReader splits a stream into lines of at most max bytes, without ever
// holding more than that.
type lineReader struct {
	r    *bufio.Reader
	buf  []byte
	max  int
	skip bool // the rest of an over-long line is still to be read past
}

func newLineReader(r io.Reader, limit int) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 64<<10), max: limit}
}

// next returns the next line without its newline; it is valid until the next
// call. A line over the limit is reported with *tooLongError as soon as the
// limit is passed, for it may never end; the call after that goes on behind it.
// A last line without newline counts as one.
func (l *lineReader) next() ([]byte, error) {
	if l.skip {
		if err := l.discard(); err != nil {
			return nil, err
		}
	}
	l.buf = l.buf[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		if len(l.buf)+len(part) > l.max+1 {
			l.skip = errors.Is(err, bufio.ErrBufferFull)
			return nil, &tooLongError{max: l.max}
		}
		if err == nil && len(l.buf) == 0 {
			return bytes.TrimRight(part, "\r\n"), nil
		}
		l.buf = append(l.buf, part...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err == nil, errors.Is(err, io.EOF) && len(l.buf) > 0:
			return bytes.TrimRight(l.buf, "\r\n"), nil
		default:
			return nil, err
		}
	}
}

func (l *lineReader) discard() error {
	for {
		_, err := l.r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		l.skip = false
		return err
	}
}
