package hygiene

import (
	"io/fs"
	"os"
)

// Where the host mounts the snapshots of a provider that may see them.
const (
	candidateDir = "/workspace/candidate"
	baselineDir  = "/workspace/baseline"
)

// snapshot looks up modes and names in the mounted snapshots. It reads no
// file: bytes come by callback, where the host keeps account of them.
type snapshot struct{ candidate, baseline side }

// openSnapshot returns nil where the host has not mounted both.
func openSnapshot(candidate, baseline string) *snapshot {
	c, err := os.OpenRoot(candidate)
	if err != nil {
		return nil
	}
	b, err := os.OpenRoot(baseline)
	if err != nil {
		_ = c.Close()
		return nil
	}
	return &snapshot{candidate: side{c}, baseline: side{b}}
}

func (s *snapshot) close() {
	if s != nil {
		_ = s.candidate.root.Close()
		_ = s.baseline.root.Close()
	}
}

// side is one mounted snapshot. Its root keeps every look-up inside, whatever
// links the candidate holds.
type side struct{ root *os.Root }

// fileKind is what a path is.
type fileKind int

const (
	absent fileKind = iota
	regular
	executable
	link
	other
)

// look tells what a path is and, for files, how many bytes it has.
func (s side) look(name string) (fileKind, int64) {
	st, err := s.root.Lstat(name)
	switch {
	case err != nil:
		return absent, 0
	case st.Mode().Type() == fs.ModeSymlink:
		return link, 0
	case !st.Mode().IsRegular():
		return other, 0
	case st.Mode().Perm()&0o111 != 0:
		return executable, st.Size()
	}
	return regular, st.Size()
}

// names lists a directory; one that is not there is empty.
func (s side) names(dir string) ([]string, error) {
	if dir == "" {
		dir = "."
	}
	f, err := s.root.Open(dir)
	if err != nil {
		return nil, nil
	}
	defer f.Close()
	return f.Readdirnames(-1)
}
