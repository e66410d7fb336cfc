package seccomp

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// format begins every cached file. It changes with anything that makes
// Compile give other instructions for the same profile.
const format = "aspis seccomp program 1\n"

// maxCached bounds what is read back.
const maxCached = len(format) + sha256.Size + maxInstructions*8

// Cached gives the compiled program of a profile for this machine's
// architecture, as the bytes that the kernel takes, and the profile's digest.
//
// Programs are kept in dir, which is made if needed, one for each profile,
// architecture and version of this package. What is found there is used only
// if it belongs to this user, nobody else can write it and its checksum is
// right; otherwise the program is compiled again and put in its place. A
// directory that cannot be written is not an error: the program is then
// compiled each time.
func Cached(dir string, p Profile) (bpf []byte, digest string, err error) {
	digest = p.Digest()
	name := filepath.Join(dir, fmt.Sprintf("%s-%s.bpf", strings.TrimPrefix(digest, "sha256:"), runtime.GOARCH))
	if bpf, err = readCached(name); err == nil {
		return bpf, digest, nil
	}
	if bpf, err = Compile(p, runtime.GOARCH); err != nil {
		return nil, digest, fmt.Errorf("compile system call filter: %w", err)
	}
	_ = writeCached(name, bpf) // see above
	return bpf, digest, nil
}

func writeCached(name string, bpf []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	// Not renameio.WriteFile, which keeps the permissions of a file that is
	// being replaced because of them.
	f, err := renameio.NewPendingFile(name, renameio.WithStaticPermissions(0o600))
	if err != nil {
		return err
	}
	defer func() { _ = f.Cleanup() }()
	if _, err := f.Write(encode(bpf)); err != nil {
		return err
	}
	return f.CloseAtomicallyReplace()
}

func encode(bpf []byte) []byte {
	sum := sha256.Sum256(bpf)
	return append(append([]byte(format), sum[:]...), bpf...)
}

var errNotOurs = errors.New("not a cached program that can be trusted")

func readCached(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o022 != 0 || int(st.Uid) != os.Geteuid() {
		return nil, errNotOurs
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(maxCached)+1))
	if err != nil {
		return nil, err
	}
	bpf := b[min(len(b), len(format)+sha256.Size):]
	if len(bpf) == 0 || len(bpf)%8 != 0 || len(b) > maxCached || !bytes.Equal(b, encode(bpf)) {
		return nil, errNotOurs
	}
	return bpf, nil
}
