package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/aspis-dev/aspis/sandbox/internal/stage"
	"github.com/aspis-dev/aspis/sandbox/kernel"
)

// Pipes are the three files that a sandbox has. The host's ends can be waited
// for with deadlines.
type Pipes struct {
	Host  [3]*os.File // standard input (to write), output and error (to read)
	Child [3]*os.File

	released atomic.Bool
}

// NewPipes makes them.
func NewPipes() (*Pipes, error) {
	p := &Pipes{}
	for i := range p.Host {
		r, w, err := os.Pipe()
		if err != nil {
			p.Close()
			return nil, fmt.Errorf("make pipes: %w", err)
		}
		if i == 0 {
			p.Child[i], p.Host[i] = r, w
		} else {
			p.Host[i], p.Child[i] = r, w
		}
	}
	return p, nil
}

// CloseChild gives up the ends that a started child has; until then the host
// would not see the child close them.
func (p *Pipes) CloseChild() {
	for _, f := range p.Child {
		_ = f.Close() // a nil or closed file only gives an error
	}
}

// Close gives up all ends. It may be called more than once.
func (p *Pipes) Close() {
	p.CloseChild()
	for _, f := range p.Host {
		_ = f.Close()
	}
}

// maxRefusal bounds what is read of a first stage's complaint.
const maxRefusal = 4096

// Handshake sends the header and waits until the first stage is ready. It
// reads exactly the frame, so that the next byte is the program's own.
func (p *Pipes) Handshake(ctx context.Context, word []byte) error {
	stop := context.AfterFunc(ctx, func() {
		past := time.Unix(1, 0)
		_ = p.Host[0].SetDeadline(past)
		_ = p.Host[1].SetDeadline(past)
	})
	err := p.exchange(word)
	if !stop() {
		return fmt.Errorf("first stage: %w", context.Cause(ctx))
	}
	return err
}

func (p *Pipes) exchange(word []byte) error {
	if _, err := p.Host[0].Write(word); err != nil {
		return fmt.Errorf("first stage ended before its instructions: %w", errors.Join(err, p.complaint()))
	}
	frame := make([]byte, len(stage.Ready))
	if _, err := io.ReadFull(p.Host[1], frame); err != nil {
		return fmt.Errorf("first stage said nothing: %w", errors.Join(err, p.complaint()))
	}
	switch string(frame) {
	case stage.Ready:
		return nil
	case stage.Refused:
		text, err := io.ReadAll(io.LimitReader(p.Host[1], maxRefusal))
		return errors.Join(fmt.Errorf("%q", text), err)
	}
	return fmt.Errorf("first stage said %q", frame)
}

// complaint is what a dead first stage left on standard error, if anything.
func (p *Pipes) complaint() error {
	if err := p.Host[2].SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		return nil
	}
	b := make([]byte, maxRefusal)
	n, _ := io.ReadFull(p.Host[2], b)
	if n == 0 {
		return nil
	}
	return fmt.Errorf("its standard error: %q", b[:n])
}

// Release sends the one byte. A second call fails: its byte would be the
// program's first.
func (p *Pipes) Release(ctx context.Context) error {
	if p.released.Swap(true) {
		return errors.New("release: released before")
	}
	stop := context.AfterFunc(ctx, func() { _ = p.Host[0].SetWriteDeadline(time.Unix(1, 0)) })
	_, err := p.Host[0].Write([]byte{stage.Go})
	if !stop() {
		return fmt.Errorf("release: %w", context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}

// IDs identifies the three pipes, in the order of Host.
func (p *Pipes) IDs() ([]kernel.PipeID, error) {
	ids := make([]kernel.PipeID, 0, len(p.Host))
	for _, f := range p.Host {
		info, err := f.Stat()
		if err != nil {
			return nil, fmt.Errorf("identify pipes: %w", err)
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil, errors.New("identify pipes: no inode")
		}
		ids = append(ids, kernel.PipeID{Dev: st.Dev, Ino: st.Ino})
	}
	return ids, nil
}
