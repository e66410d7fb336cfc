package supervise

import (
	"bytes"
	"io"
	"sync"
)

const (
	stderrKeep = 16 << 10 // bytes of stderr that are kept
	detailKeep = 300      // runes of it that go into a detail
)

// tail drains a stream and keeps its end, so that a provider can write as much
// as it likes and never waits for us.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

func (t *tail) drain(r io.Reader) {
	chunk := make([]byte, 8<<10)
	for {
		n, err := r.Read(chunk)
		t.mu.Lock()
		t.buf = append(t.buf, chunk[:n]...)
		if over := len(t.buf) - stderrKeep; over > 0 {
			t.buf = append(t.buf[:0], t.buf[over:]...)
		}
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// lastLine returns the last line that is not blank, shortened.
func (t *tail) lastLine() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := bytes.Split(t.buf, []byte{'\n'})
	for i := len(lines) - 1; i >= 0; i-- {
		if l := bytes.TrimSpace(lines[i]); len(l) > 0 {
			return clip(string(l), detailKeep)
		}
	}
	return ""
}
