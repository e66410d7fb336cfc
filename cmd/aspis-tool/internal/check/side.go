package check

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/aspis-dev/aspis/cmd/aspis-tool/internal/match"
)

// Bounds of what is read and copied of a view.
const (
	maxListed    = 200_000   // files in a listing
	maxCopied    = 192 << 20 // bytes of a writable copy; it lies in memory
	maxCopyFiles = 50_000
	maxFileRead  = 8 << 20 // of a file whose text is compared
	maxTextRead  = 256 << 20
	maxShebang   = 200
)

// side is one view as the tool sees it.
type side struct {
	root *os.Root // keeps every look-up inside, whatever links the view holds
	dir  string   // the view's path, or that of its copy
	// texts are files that were read for their tokens; nil where one is too large
	// or not there.
	texts map[string]*match.Text
	read  int64
}

func openSide(dir string) (*side, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &side{root: root, dir: dir, texts: map[string]*match.Text{}}, nil
}

func (s *side) close() { _ = s.root.Close() }

// kind tells whether a path is there at all, and whether it is a file.
func (s *side) kind(name string) (there, file bool) {
	st, err := s.root.Lstat(name)
	if err != nil {
		return false, false
	}
	return true, st.Mode().IsRegular()
}

// firstLine gives a file's first line, or "".
func (s *side) firstLine(name string) string {
	f, err := s.root.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	line, _ := bufio.NewReader(io.LimitReader(f, maxShebang)).ReadString('\n')
	return strings.TrimSpace(line)
}

// text gives a file cut into tokens, or nil.
func (s *side) text(name string) *match.Text {
	if t, ok := s.texts[name]; ok {
		return t
	}
	s.texts[name] = nil
	if there, file := s.kind(name); !there || !file || s.read > maxTextRead {
		return nil
	}
	f, err := s.root.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxFileRead+1))
	if err != nil || len(content) > maxFileRead {
		return nil
	}
	s.read += int64(len(content))
	s.texts[name] = match.NewText(content)
	return s.texts[name]
}

var errTooManyFiles = fmt.Errorf("the view has more than %d files", maxListed)

// each calls fn for every regular file of the view, in order.
func (s *side) each(ctx context.Context, fn func(name string) error) error {
	n := 0
	return fs.WalkDir(s.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !d.Type().IsRegular() {
			return nil
		}
		if n++; n > maxListed {
			return errTooManyFiles
		}
		return fn(name)
	})
}

// copyTo makes a writable copy of the view, which the tool is shown instead.
func (s *side) copyTo(ctx context.Context, dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	files, left := 0, int64(maxCopied)
	err := fs.WalkDir(s.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if files++; files > maxCopyFiles {
			return fmt.Errorf("it has more than %d files", maxCopyFiles)
		}
		target := filepath.Join(dir, name)
		switch {
		case name == ".":
			return nil
		case d.IsDir():
			return os.Mkdir(target, 0o755)
		case d.Type() == fs.ModeSymlink:
			to, err := s.root.Readlink(name)
			if err != nil {
				return err
			}
			return os.Symlink(to, target)
		case !d.Type().IsRegular():
			return nil
		}
		n, err := s.copyFile(name, target, left)
		left -= n
		return err
	})
	if err != nil {
		return fmt.Errorf("the tool needs a writable copy of the workspace, which could not be made: %w", err)
	}
	s.dir = dir
	return nil
}

func (s *side) copyFile(name, target string, left int64) (n int64, err error) {
	in, err := s.root.Open(name)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	mode := fs.FileMode(0o644)
	if st, err := in.Stat(); err == nil && st.Mode()&0o111 != 0 {
		mode = 0o755
	}
	out, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	n, err = io.Copy(out, io.LimitReader(in, left+1))
	if err == nil && n > left {
		err = fmt.Errorf("it has more than %d bytes", int64(maxCopied))
	}
	return n, err
}
