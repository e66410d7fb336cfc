package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/aspis-dev/aspis/sandbox/internal/stage"
)

// pipes are the three files that a sandbox has. The host's ends can be waited
// for with deadlines.
type pipes struct {
	host  [3]*os.File // standard input (to write), output and error (to read)
	child [3]*os.File
}

func newPipes() (*pipes, error) {
	p := &pipes{}
	for i := range p.host {
		r, w, err := os.Pipe()
		if err != nil {
			p.close()
			return nil, fmt.Errorf("make pipes: %w", err)
		}
		if i == 0 {
			p.child[i], p.host[i] = r, w
		} else {
			p.host[i], p.child[i] = r, w
		}
	}
	return p, nil
}

func (p *pipes) closeChild() {
	for _, f := range p.child {
		_ = f.Close() // a nil or closed file only gives an error
	}
}

func (p *pipes) close() {
	p.closeChild()
	for _, f := range p.host {
		_ = f.Close()
	}
}

// maxRefusal bounds what is read of a first stage's complaint.
const maxRefusal = 4096

// handshake sends the header and waits until the first stage is ready. It
// reads exactly the frame, so that the next byte is the program's own.
func (p *pipes) handshake(ctx context.Context, word []byte) error {
	stop := context.AfterFunc(ctx, func() {
		past := time.Unix(1, 0)
		_ = p.host[0].SetDeadline(past)
		_ = p.host[1].SetDeadline(past)
	})
	err := p.exchange(word)
	if !stop() {
		return fmt.Errorf("first stage: %w", context.Cause(ctx))
	}
	return err
}

func (p *pipes) exchange(word []byte) error {
	if _, err := p.host[0].Write(word); err != nil {
		return fmt.Errorf("first stage ended before its instructions: %w", errors.Join(err, p.complaint()))
	}
	frame := make([]byte, len(stage.Ready))
	if _, err := io.ReadFull(p.host[1], frame); err != nil {
		return fmt.Errorf("first stage said nothing: %w", errors.Join(err, p.complaint()))
	}
	switch string(frame) {
	case stage.Ready:
		return nil
	case stage.Refused:
		text, err := io.ReadAll(io.LimitReader(p.host[1], maxRefusal))
		return errors.Join(fmt.Errorf("%q", text), err)
	}
	return fmt.Errorf("first stage said %q", frame)
}

// complaint is what a dead first stage left on standard error, if anything.
func (p *pipes) complaint() error {
	if err := p.host[2].SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		return nil
	}
	b := make([]byte, maxRefusal)
	n, _ := io.ReadFull(p.host[2], b)
	if n == 0 {
		return nil
	}
	return fmt.Errorf("its standard error: %q", b[:n])
}

// release sends the one byte.
func (p *pipes) release(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = p.host[0].SetWriteDeadline(time.Unix(1, 0)) })
	_, err := p.host[0].Write([]byte{stage.Go})
	if !stop() {
		return fmt.Errorf("release: %w", context.Cause(ctx))
	}
	if err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return nil
}
