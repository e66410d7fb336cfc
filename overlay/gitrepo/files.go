package gitrepo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// Bounds of what is read from a repository's own files, in bytes.
const (
	maxLine  = 64 << 10 // HEAD, commondir, a .git file
	maxRules = 4 << 20  // configuration, ignore rules, attributes
	maxIndex = 4 << 30
)

// openRegular opens a file of the repository for reading. Anything else in its
// place, such as a pipe that would be waited for, is refused.
func openRegular(path string) (*os.File, os.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = &os.PathError{Op: "read", Path: path, Err: errors.New("it is not a regular file")}
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, st, nil
}

// readBounded reads a file of the repository of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	f, _, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = &os.PathError{Op: "read", Path: path, Err: fmt.Errorf("it has over %d bytes", limit)}
	}
	return b, err
}

// readOptional is readBounded for a file that need not be there.
func readOptional(path string, limit int64) ([]byte, error) {
	b, err := readBounded(path, limit)
	if absent(err) {
		return nil, nil
	}
	return b, err
}

// readSmall reads the one line of a file of git's.
func readSmall(path string) (string, error) {
	b, err := readBounded(path, maxLine)
	return string(bytes.TrimRight(b, "\r\n")), err
}

// absent tells that a path leads to nothing, as against to something that
// cannot be read.
func absent(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// copyFile copies a file together with its time.
func copyFile(from, to string, limit int64) error {
	in, st, err := openRegular(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	n, err := io.Copy(out, io.LimitReader(in, limit+1))
	if err == nil && n > limit {
		err = &os.PathError{Op: "copy", Path: from, Err: fmt.Errorf("it has over %d bytes", limit)}
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return os.Chtimes(to, st.ModTime(), st.ModTime())
}

// replaceFile writes a file only when its text differs, and then atomically:
// several processes may share a shadow.
func replaceFile(path, text string) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == text {
		return nil
	}
	return renameio.WriteFile(path, []byte(text), 0o600)
}

func replaceLink(target, link string) error {
	if old, err := os.Readlink(link); err == nil && old == target {
		return nil
	}
	err := renameio.Symlink(target, link)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

// quoteAlternate quotes a path for objects/info/alternates, where a line that
// begins with a double quote is a C-style string (gitrepository-layout(5)).
func quoteAlternate(path string) string {
	if !strings.ContainsAny(path, "\n\"\\#") {
		return path
	}
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(path) + `"`
}
