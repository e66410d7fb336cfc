package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// fileState tells one state of a file from any later one: nobody can set the
// time of its last change but by changing the clock.
type fileState struct {
	Path          string `json:"path"`
	Dev, Ino      uint64
	Size          int64
	Mtime, Ctime  int64 // in nanoseconds
	Digest        string
	Version       int
	ChangedBefore bool // well before it was read, so that a change after that shows
}

const (
	shippedFile  = "shipped.json"
	shippedKind  = 1
	shippedBytes = 4 << 10
	// settled is longer than the step of any file system's clock.
	settled = 2 * time.Second
)

// shippedDigest gives the digest of the provider that comes with aspis, from
// memory where the file is as it was. The host reads and hashes the very copy
// that it launches all the same, so that a memory that is wrong makes a
// provider that is refused.
func shippedDigest(ctx context.Context, path string) (string, error) {
	now, err := stateOf(path)
	if err != nil {
		return "", err
	}
	dir, err := stateDir()
	if err != nil {
		return "", err
	}
	memory := filepath.Join(dir, shippedFile)
	if known, ok := recall(memory); ok {
		now.Digest, now.ChangedBefore = known.Digest, true
		if known == now {
			return known.Digest, nil
		}
	}
	now.ChangedBefore = time.Since(time.Unix(0, now.Ctime)) > settled
	if now.Digest, err = digestOf(ctx, path); err != nil {
		return "", err
	}
	// Not worth an error: it is only slower next time.
	if b, err := json.Marshal(now); err == nil {
		_ = renameio.WriteFile(memory, b, 0o600)
	}
	return now.Digest, nil
}

func recall(path string) (s fileState, ok bool) {
	info, err := os.Stat(path)
	if err != nil || info.Size() > shippedBytes {
		return s, false
	}
	b, err := os.ReadFile(path)
	if err != nil || json.Unmarshal(b, &s, json.RejectUnknownMembers(true)) != nil {
		return fileState{}, false
	}
	return s, true
}

func stateOf(path string) (fileState, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fileState{}, fmt.Errorf("look at %q: %w", path, err)
	}
	return fileState{Path: path, Dev: st.Dev, Ino: st.Ino, Size: st.Size, Version: shippedKind,
		Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano()}, nil
}
