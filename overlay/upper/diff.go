package upper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/internal/beneath"
)

// Options say how an upper directory is read.
type Options struct {
	// Userxattr: the marks are those of a mount in a user namespace.
	Userxattr bool
	// Prune leaves out a path with all below; nil leaves out nothing.
	Prune func(p string) bool
	// Max bounds the paths that are looked at; 0 is for a million.
	Max int
}

// Op is one path that is not what it was. Before is nil where nothing was, After
// where nothing is.
type Op struct {
	Path          string
	Before, After *State
}

// Refused is something in the upper directory that no change can be made of.
type Refused struct{ Path, What string }

// Diff is what was done in a mount. Ops and Refused are in the order of their
// paths as bytes. A directory has an Op only where it is new, gone, or has other
// permissions; a file also where it may be the same as before, only copied up.
type Diff struct {
	Ops     []Op
	Refused []Refused
}

// TooManyError says that more was changed than is looked at.
type TooManyError struct{ Max int }

func (e *TooManyError) Error() string { return fmt.Sprintf("more than %d files were changed", e.Max) }

const defaultMax = 1 << 20

// Read reads an upper directory over what it lies over. The states that it gives
// can be opened as long as both are open. The mount may be in use: what is
// changed meanwhile may be in the answer or not.
func Read(ctx context.Context, dir int, lower *Lower, o Options) (*Diff, error) {
	if o.Max == 0 {
		o.Max = defaultMax
	}
	r := &reading{ctx: ctx, dir: dir, lower: lower, o: o, marks: "trusted.overlay.", before: map[string]State{}, after: map[string]State{}}
	if o.Userxattr {
		r.marks = "user.overlay."
	}
	mark, err := r.mark(".", "opaque")
	if err != nil {
		return nil, err
	}
	if err := r.inPlace(".", mark); err != nil {
		return nil, err
	}
	d := &Diff{Refused: r.refused}
	paths := slices.Collect(maps.Keys(r.after))
	for p := range r.before {
		if _, both := r.after[p]; !both {
			paths = append(paths, p)
		}
	}
	slices.Sort(paths)
	for _, p := range paths {
		op := Op{Path: p}
		if s, ok := r.before[p]; ok {
			op.Before = &s
		}
		if s, ok := r.after[p]; ok {
			op.After = &s
		}
		if op.Before != nil && op.After != nil && op.Before.Dir() && op.After.Dir() && op.Before.Mode == op.After.Mode {
			continue
		}
		d.Ops = append(d.Ops, op)
	}
	slices.SortFunc(d.Refused, func(a, b Refused) int { return strings.Compare(a.Path, b.Path) })
	return d, nil
}

type reading struct {
	ctx           context.Context
	dir           int
	lower         *Lower
	o             Options
	marks         string
	before, after map[string]State
	refused       []Refused
	seen          int
}

func (r *reading) step() error {
	if r.seen++; r.seen > r.o.Max {
		return &TooManyError{Max: r.o.Max}
	}
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	return nil
}

func (r *reading) pruned(p string) bool { return r.o.Prune != nil && r.o.Prune(p) }

func (r *reading) refuse(p, what string) { r.refused = append(r.refused, Refused{p, what}) }

// inPlace reads a directory that lies over the one of the same path: only what
// it holds itself is other than it was.
func (r *reading) inPlace(dir, opaque string) error {
	return r.each(dir, opaque, func(e entry) error {
		was, had, err := r.lower.Lookup(e.path)
		if err != nil {
			return err
		}
		if e.gone {
			return r.wasAll(e.path, was, had)
		}
		if !e.state.Dir() {
			r.is(e, e.path)
			return r.wasAll(e.path, was, had)
		}
		if e.opaque == "y" || e.redirect != "" || !had || !was.Dir() {
			if err := r.wasAll(e.path, was, had); err != nil {
				return err
			}
			return r.displaced(e, dir)
		}
		r.before[e.path], r.after[e.path] = was, *e.state
		return r.inPlace(e.path, e.opaque)
	})
}

// displaced reads a directory that lies over none, or over one of another path,
// which is where it was renamed from. over is the path that its parent lies
// over, "" for none.
func (r *reading) displaced(e entry, over string) error {
	r.after[e.path] = *e.state
	below := ""
	switch {
	case e.redirect != "":
		below = redirected(e.redirect, over)
	case e.opaque != "y" && over != "":
		below = path.Join(over, path.Base(e.path))
	}
	if below != "" {
		was, had, err := r.lower.Lookup(below)
		if err != nil {
			return err
		}
		if !had || !was.Dir() {
			below = ""
		}
	}
	own := map[string]bool{}
	err := r.each(e.path, e.opaque, func(c entry) error {
		own[path.Base(c.path)] = true
		switch {
		case c.gone:
			return nil
		case c.state.Dir():
			return r.displaced(c, below)
		}
		from := ""
		if below != "" {
			from = path.Join(below, path.Base(c.path))
		}
		r.is(c, from)
		return nil
	})
	if err != nil || below == "" {
		return err
	}
	names, err := r.lower.names(below)
	if err != nil {
		return err
	}
	for _, name := range names {
		if own[name] {
			continue
		}
		if err := r.lowerTree(r.after, path.Join(e.path, name), path.Join(below, name)); err != nil {
			return err
		}
	}
	return nil
}

// redirected gives the path that a redirect names: from the root, or a name beside
// the one below, in the directory over ("" where there is none). "" is for what
// the kernel never writes.
func redirected(mark, over string) string {
	rooted, fromRoot := strings.CutPrefix(mark, "/")
	for name := range strings.SplitSeq(rooted, "/") {
		if name == "" || name == "." || name == ".." || strings.Contains(name, "\x00") {
			return ""
		}
	}
	switch {
	case fromRoot:
		return rooted
	case over == "" || strings.Contains(mark, "/"):
		return ""
	}
	return path.Join(over, mark)
}

// is notes a file of the upper directory. from is the path of the one below
// whose bytes it has where it has none of its own.
func (r *reading) is(e entry, from string) {
	s := *e.state
	if e.metacopy {
		if e.redirect != "" {
			over := ""
			if from != "" {
				over = path.Dir(from)
			}
			from = redirected(e.redirect, over)
		}
		below, ok, err := State{}, false, error(nil)
		if from != "" {
			below, ok, err = r.lower.Lookup(from)
		}
		if err != nil || !ok || !below.Regular() {
			r.refuse(e.path, "file whose content is not there")
			return
		}
		s.from, s.Size = below.from, below.Size
	}
	r.after[e.path] = s
}

// wasAll notes what was at a path, with everything below.
func (r *reading) wasAll(p string, was State, had bool) error {
	switch {
	case !had || r.pruned(p):
		return nil
	case !was.Dir():
		r.before[p] = was
		return r.step()
	}
	return r.lowerTree(r.before, p, p)
}

// lowerTree notes everything below, as it is seen at another path.
func (r *reading) lowerTree(into map[string]State, p, below string) error {
	if r.pruned(p) {
		return nil
	}
	if err := r.step(); err != nil {
		return err
	}
	s, ok, err := r.lower.Lookup(below)
	if err != nil || !ok {
		return err
	}
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFDIR, unix.S_IFREG, unix.S_IFLNK:
	default:
		return nil // a device of the project: no change touches it
	}
	into[p] = s
	if !s.Dir() {
		return nil
	}
	names, err := r.lower.names(below)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := r.lowerTree(into, path.Join(p, name), path.Join(below, name)); err != nil {
			return err
		}
	}
	return nil
}

// entry is one name in an upper directory.
type entry struct {
	path     string
	gone     bool // a whiteout; the rest is empty then
	state    *State
	opaque   string // of directories
	redirect string
	metacopy bool
}

// each reads the names of an upper directory. What is gone again is passed over;
// what no change can be made of is refused.
func (r *reading) each(dir, opaque string, fn func(entry) error) error {
	names, err := readNames(r.dir, dir)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil
	case errors.Is(err, unix.ENAMETOOLONG):
		r.refuse(dir, "directory whose path is too long")
		return nil
	case err != nil:
		return err
	}
	for _, name := range names {
		p := path.Join(dir, name)
		if r.pruned(p) {
			continue
		}
		if err := r.step(); err != nil {
			return err
		}
		e, ok, err := r.look(p, opaque)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

func (r *reading) look(p, opaque string) (entry, bool, error) {
	e := entry{path: p}
	fd, err := beneath.Open(r.dir, p, unix.O_PATH, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return e, false, nil
	case errors.Is(err, unix.ENAMETOOLONG):
		r.refuse(p, "file whose path is too long")
		return e, false, nil
	case err != nil:
		return e, false, &os.PathError{Op: "look at", Path: p, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return e, false, &os.PathError{Op: "look at", Path: p, Err: err}
	}
	s := stateOf(r.dir, p, st)
	e.state = &s
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if e.opaque, err = r.mark(p, "opaque"); err == nil {
			e.redirect, err = r.mark(p, "redirect")
		}
	case unix.S_IFREG:
		if st.Size == 0 && opaque == "x" {
			e.gone, err = r.has(p, "whiteout")
		}
		// How many blocks it takes says nothing: its attributes may take one.
		if st.Size > 0 {
			if e.metacopy, err = r.has(p, "metacopy"); err == nil && e.metacopy {
				e.redirect, err = r.mark(p, "redirect")
			}
		}
	case unix.S_IFLNK:
		s.Target, err = readlink(r.dir, p)
	default:
		if e.gone = isWhiteout(st); !e.gone {
			r.refuse(p, kindOf(st.Mode))
			return e, false, nil
		}
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return e, false, nil
	}
	return e, err == nil, err
}

func kindOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return "fifo"
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFCHR:
		return "character device"
	case unix.S_IFBLK:
		return "block device"
	}
	return "file of an unknown kind"
}

// mark reads one of overlayfs's marks; "" is for none.
func (r *reading) mark(p, name string) (string, error) {
	v, _, err := r.attribute(p, name)
	return v, err
}

func (r *reading) has(p, name string) (bool, error) {
	_, ok, err := r.attribute(p, name)
	return ok, err
}

func (r *reading) attribute(p, name string) (string, bool, error) {
	fd, err := beneath.Open(r.dir, p, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", false, &os.PathError{Op: "open", Path: p, Err: err}
	}
	defer unix.Close(fd)
	buf := make([]byte, maxTarget)
	n, err := unix.Fgetxattr(fd, r.marks+name, buf)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP):
		return "", false, nil
	case err != nil:
		return "", false, &os.PathError{Op: "getxattr", Path: p, Err: err}
	}
	return string(buf[:n]), true, nil
}
