package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/aspis-dev/aspis/host/rpc"
	"github.com/aspis-dev/aspis/schemas"
)

// peer is a program that speaks JSON-RPC on its standard input and output.
type peer struct {
	conn *rpc.Conn
	stop func() error
}

// talk starts a program and speaks with it until stop, which closes its input
// and waits for its end.
func talk(ctx context.Context, cmd *exec.Cmd, h rpc.Handler) (*peer, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	conn := rpc.New(h, rpc.Options{LineBytes: 64 << 20, Decode: schemas.Limits{MaxBytes: 64 << 20, MaxElements: 1 << 20}, Cancel: schemas.MethodCancelRequest})
	ended := make(chan error, 1)
	go func() { ended <- conn.Run(ctx, out, in) }()
	return &peer{conn: conn, stop: func() error {
		err := in.Close()
		if e := <-ended; !errors.Is(e, io.EOF) {
			err = errors.Join(err, e)
		}
		return errors.Join(err, cmd.Wait())
	}}, nil
}

// memory answers a provider's callbacks from memory, as fast as can be.
type memory struct {
	entries []schemas.TreeEntry
	blobs   map[schemas.BlobRef][]byte
}

func (m memory) Request(_ context.Context, method string, params jsontext.Value) (any, error) {
	switch method {
	case schemas.MethodListTree:
		return schemas.ListTreeResult{Entries: m.entries}, nil
	case schemas.MethodReadBlob:
		p, err := schemas.DecodeReadBlobParams(params, schemas.Limits{})
		if err != nil {
			return nil, err
		}
		res := schemas.ReadBlobResult{}
		for _, ref := range p.Blobs {
			b, ok := m.blobs[ref]
			if !ok {
				return nil, &schemas.Error{Code: schemas.CodeBlobUnavailable, Message: "no such blob"}
			}
			res.Blobs = append(res.Blobs, schemas.Blob{ID: ref, Encoding: "utf-8", Bytes: string(b)})
		}
		return res, nil
	}
	return nil, fmt.Errorf("the bench does not serve %s", method)
}

func (memory) Notification(context.Context, string, jsontext.Value) error { return nil }

// alone runs the provider on the change without host, walls or git, and tells
// how long it takes by itself to start and to judge: what no host can save.
func alone(ctx context.Context, program string, change schemas.ChangeSet, m memory) (started, whole time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	p, err := talk(ctx, exec.CommandContext(ctx, program), m)
	if err != nil {
		return 0, 0, err
	}
	if _, err = p.conn.Call(ctx, schemas.MethodInitialize, schemas.InitializeParams{
		ProtocolVersion: schemas.ProtocolVersion, Host: schemas.NameVersion{Name: "bench", Version: "1"},
		Workspace: schemas.Workspace{Root: "/", Baseline: change.Baseline},
	}); err != nil {
		return 0, 0, errors.Join(fmt.Errorf("greet the provider: %w", err), p.stop())
	}
	started = time.Since(began)
	n, no := 1<<20, false
	grant := schemas.Permissions{Read: []string{"**"}, Write: &no, Network: &no, ResourceLimits: &schemas.ResourceLimits{WallclockMs: &n}}
	if err = p.conn.Notify(ctx, schemas.MethodInitialized, schemas.InitializedParams{GrantedPermissions: grant, Baseline: change.Baseline}); err == nil {
		_, err = p.conn.Call(ctx, schemas.MethodCheckEvaluate, schemas.CheckParams{ChangeSet: change, Scope: schemas.Scope{Name: schemas.ScopeChangeset}, Comparison: schemas.Introduced})
	}
	whole = time.Since(began)
	if err != nil {
		return 0, 0, errors.Join(fmt.Errorf("ask the provider: %w", err), p.stop())
	}
	if _, err = p.conn.Call(ctx, schemas.MethodShutdown, nil); err == nil {
		err = p.conn.Notify(ctx, schemas.MethodExit, nil)
		select { // it closes its side when it has read that
		case <-p.conn.Done():
		case <-ctx.Done():
		}
	}
	return started, whole, errors.Join(err, p.stop())
}
