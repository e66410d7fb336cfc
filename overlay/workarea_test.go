package overlay

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/aspis-dev/aspis/schemas"
)

// plain is a store and a directory without git.
type plain struct {
	t     testing.TB
	store *Store
	space *space
	dir   string
}

func newPlain(t testing.TB) *plain {
	t.Helper()
	p := &plain{t: t, space: newSpace(t), dir: filepath.Join(t.TempDir(), "project")}
	p.must(os.Mkdir(p.dir, 0o755))
	store, err := Open(filepath.Join(t.TempDir(), "state"))
	p.must(err)
	p.store = store
	t.Cleanup(store.Wait)
	return p
}

func (p *plain) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *plain) write(path, text string) {
	p.t.Helper()
	full := filepath.Join(p.dir, path)
	p.must(os.MkdirAll(filepath.Dir(full), 0o755))
	p.must(os.WriteFile(full, []byte(text), 0o644))
}

// settle waits until files are old enough for a change to show in their times.
func (p *plain) settle() { time.Sleep(60 * time.Millisecond) }

func (p *plain) area(o WorkOptions) *WorkArea {
	p.t.Helper()
	w, err := p.store.CreateWorkArea(context.Background(), WorkSource{Dir: p.dir}, o)
	p.must(err)
	return w
}

// in runs fn with the work area mounted.
func (p *plain) in(w *WorkArea, fn func(dir string) error) {
	p.t.Helper()
	m, err := w.Mount(context.Background(), p.space)
	p.must(err)
	err = p.space.Do(func() error { return fn(m.Path) })
	p.must(errors.Join(err, m.Close()))
}

// shell runs a script in the mounted work area.
func (p *plain) shell(w *WorkArea, script string) string {
	p.t.Helper()
	var out []byte
	p.in(w, func(dir string) (err error) {
		cmd := exec.Command("sh", "-euc", script)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
		if out, err = cmd.CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
	return string(out)
}

// whole is everything below a directory: type and permissions, and the content.
func whole(dir string) (map[string]string, error) {
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		info, err := d.Info()
		if err != nil {
			return err
		}
		s := fmt.Sprintf("%v ", info.Mode())
		switch d.Type() {
		case fs.ModeSymlink:
			t, err := os.Readlink(p)
			out[rel] = s + t
			return err
		case 0:
			b, err := os.ReadFile(p)
			out[rel] = s + string(b)
			return err
		}
		out[rel] = s
		return nil
	})
	return out, err
}

func (p *plain) seen(w *WorkArea) (out map[string]string) {
	p.t.Helper()
	p.in(w, func(dir string) (err error) { out, err = whole(dir); return err })
	return out
}

func (p *plain) project() map[string]string {
	p.t.Helper()
	out, err := whole(p.dir)
	p.must(err)
	return out
}

func (p *plain) changes(w *WorkArea) *WorkDiff {
	p.t.Helper()
	d, err := w.Changes(context.Background(), ChangesOptions{})
	p.must(err)
	return d
}

func lines(d *WorkDiff) []string {
	var out []string
	for _, c := range d.Changes {
		s := fmt.Sprintf("%s %s", c.Kind, c.Path)
		if c.From != "" {
			s += " from " + c.From
		}
		if c.Metadata {
			s += " metadata"
		}
		if c.IsDir() {
			s += "/"
		}
		out = append(out, s)
	}
	for _, r := range d.Refused {
		out = append(out, "refused "+r.Path+" "+r.What)
	}
	return out
}

func TestWorkAreaIsWritableAndTheProjectIsNot(t *testing.T) {
	p := newPlain(t)
	p.write("src/a.c", "int a;\n")
	p.write("src/b.c", "int b;\n")
	p.write("lib/deep/er/x", "x\n")
	p.write("build/out.o", "object\n")
	p.must(os.Symlink("src/a.c", p.dir+"/link"))
	p.must(os.Mkdir(p.dir+"/empty", 0o750))
	for _, o := range []WorkOptions{{}, {Live: true}} {
		before := p.project()
		w := p.area(o)
		p.shell(w, `
			echo changed >src/a.c; rm src/b.c; mkdir new; echo n >new/file; chmod 755 build/out.o
			mv lib lib2; ln -sf elsewhere link; mkfifo pipe; touch src/touched`)
		if got := p.project(); !maps.Equal(got, before) {
			t.Fatalf("the project was changed: %v", got)
		}
		same(t, "changes", lines(p.changes(w)), []string{
			"modify build/out.o metadata", "delete lib/", "delete lib/deep/", "delete lib/deep/er/",
			"create lib2/", "create lib2/deep/", "create lib2/deep/er/", "rename lib2/deep/er/x from lib/deep/er/x",
			"modify link", "create new/", "create new/file", "modify src/a.c", "delete src/b.c", "create src/touched",
			"refused pipe fifo",
		})
		// Another process finds it, and what was done in it.
		again, err := Open(p.store.dir)
		p.must(err)
		w2, err := again.OpenWorkArea(w.ID())
		p.must(err)
		same(t, "changes later", lines(p.changes(w2)), lines(p.changes(w)))
		if s := p.shell(w2, "cat src/a.c lib2/deep/er/x; ls lib 2>&1 || true"); !strings.HasPrefix(s, "changed\nx\n") {
			t.Fatal(s)
		}
		kept, err := w.Changes(context.Background(), ChangesOptions{Keep: true})
		p.must(err)
		for _, c := range kept.Changes {
			for _, ref := range []schemas.BlobRef{c.Before, c.After} {
				if c.Kind != schemas.ChangeRename && c.Kind != schemas.ChangeDelete && ref != "" && !p.store.HasBlob(ref) {
					t.Errorf("%s: %s is not in the store", c.Path, ref)
				}
			}
		}
		p.must(w.Drop(context.Background()))
		if _, err := p.store.OpenWorkArea(w.ID()); !errors.Is(err, ErrNoWorkArea) {
			t.Fatal(err)
		}
	}
}

// TestFrozenStaysAsItWas rewrites the project under three work areas.
func TestFrozenStaysAsItWas(t *testing.T) {
	p := newPlain(t)
	for i := range 200 {
		p.write(fmt.Sprintf("d%d/f%d", i%7, i), fmt.Sprint("one ", i))
	}
	var areas []*WorkArea
	var want []map[string]string
	for round := range 4 {
		areas = append(areas, p.area(WorkOptions{}))
		want = append(want, p.project())
		for i := range 200 {
			if i%7 <= round {
				continue // a file soon, or already
			}
			switch (i + round) % 5 {
			case 0:
				p.write(fmt.Sprintf("d%d/f%d", i%7, i), fmt.Sprint("round ", round, i))
			case 1:
				os.Remove(filepath.Join(p.dir, fmt.Sprintf("d%d/f%d", i%7, i)))
			}
		}
		p.must(os.RemoveAll(fmt.Sprintf("%s/d%d", p.dir, round)))
		p.write(fmt.Sprintf("d%d", round), "a file now")
	}
	for i, w := range areas {
		if got := p.seen(w); !maps.Equal(got, want[i]) {
			t.Errorf("work area %d does not show what it was made over", i)
		}
		drift, err := w.Drift(context.Background())
		p.must(err)
		now := p.project()
		told := map[string]bool{}
		for _, d := range drift {
			if d.Seen {
				t.Errorf("%s can be seen", d.Path)
			}
			told[d.Path] = true
		}
		for path, was := range want[i] {
			if now[path] != was && !told[path] && !slices.ContainsFunc(drift, func(d Drift) bool { return strings.HasPrefix(path, d.Path+"/") }) {
				t.Errorf("%s has drifted and is not told", path)
			}
		}
		for path := range told {
			if now[path] == want[i][path] {
				t.Errorf("%s is told and has not drifted", path)
			}
		}
	}
}

func TestLiveTellsItsDrift(t *testing.T) {
	p := newPlain(t)
	p.write("a", "1")
	p.write("b", "2")
	p.write("d/c", "3")
	w := p.area(WorkOptions{Live: true})
	m, err := w.Mount(context.Background(), p.space)
	p.must(err)
	p.must(<-m.rest) // it is noted what is there
	m.rest <- nil
	p.must(m.Close())
	p.shell(w, "echo mine >d/new")
	p.write("a", "drifted")
	p.must(os.Remove(p.dir + "/b"))
	p.write("e", "came")
	drift, err := w.Drift(context.Background())
	p.must(err)
	var got []string
	for _, d := range drift {
		got = append(got, fmt.Sprintf("%s %s %v", d.Kind, d.Path, d.Seen))
	}
	slices.Sort(got)
	same(t, "drift", got, []string{"create e true", "delete b true", "modify a true"})
}

func TestUnchangedProjectIsNotReadAgain(t *testing.T) {
	p := newPlain(t)
	p.write("a", "1")
	p.write("d/b", "2")
	old := time.Now().Add(-time.Hour)
	p.must(os.Chtimes(p.dir+"/a", old, old))
	p.settle()
	one := p.area(WorkOptions{})
	p.write("d/b", "3")
	two := p.area(WorkOptions{})
	three := p.area(WorkOptions{})
	if a, b := one.note.Parts[0].Layers, two.note.Parts[0].Layers; len(a) != 1 || len(b) != 2 || a[0] != b[1] {
		t.Fatal(a, b)
	}
	if h := two.Parts()[0].Held; h.Copied+h.Cloned != 1 {
		t.Fatalf("%+v", h)
	}
	_ = three
}

// TestSameSizeSameTick writes a file again so soon that its times may stand
// still.
func TestSameSizeSameTick(t *testing.T) {
	p := newPlain(t)
	for i := range 200 {
		p.write("f", fmt.Sprintf("%03d", i))
		w := p.area(WorkOptions{})
		if got := p.seen(w)["f"]; got != fmt.Sprintf("-rw-r--r-- %03d", i) {
			t.Fatalf("%d: %q", i, got)
		}
		p.must(w.Drop(context.Background()))
	}
}

func TestWorkAreaIsMountedOnce(t *testing.T) {
	p := newPlain(t)
	p.write("a", "1")
	w := p.area(WorkOptions{})
	m, err := w.Mount(context.Background(), p.space)
	p.must(err)
	var busy *BusyError
	if _, err := w.Mount(context.Background(), p.space); !errors.As(err, &busy) {
		t.Fatal(err)
	}
	if err := w.Drop(context.Background()); !errors.As(err, &busy) {
		t.Fatal(err)
	}
	p.must(m.Close())
	p.must(m.Close())
	p.must(w.Drop(context.Background()))
}

// TestLiveDriftBeforeItWasNoted: what changed before anything could be noted is
// told too, what went by its directory.
func TestLiveDriftBeforeItWasNoted(t *testing.T) {
	p := newPlain(t)
	p.write("a", "1")
	p.write("d/b", "2")
	p.write("d/c", "3")
	p.settle()
	w := p.area(WorkOptions{Live: true})
	p.settle()
	p.write("a", "4")
	p.must(os.Remove(p.dir + "/d/b"))
	for what, do := range map[string]func(){"never noted": func() {}, "noted late": func() {
		m, err := w.Mount(context.Background(), p.space)
		p.must(err)
		p.must(<-m.rest)
		m.rest <- nil
		p.must(m.Close())
	}} {
		do()
		drift, err := w.Drift(context.Background())
		p.must(err)
		var got []string
		for _, d := range drift {
			got = append(got, fmt.Sprintf("%s %s %v", d.Kind, d.Path, d.Seen))
		}
		slices.Sort(got)
		same(t, what, got, []string{"modify a true", "modify d true"})
	}
}

// TestRandomWork replays random operations through a real mount. What Changes
// finds must be the difference between what was and what is seen.
func TestRandomWork(t *testing.T) {
	p := newPlain(t)
	names := []string{"a", "b", "c", "a.b", "é\xff"}
	path := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(names), 1, 3).Draw(t, "names"), "/")
	})
	rounds := 0
	limit := 60
	if testing.Short() {
		limit = 15
	}
	rapid.Check(t, func(rt *rapid.T) {
		if rounds++; rounds > limit {
			return
		}
		p.must(os.RemoveAll(p.dir))
		p.must(os.Mkdir(p.dir, 0o755))
		var w *WorkArea
		for layer := range rapid.IntRange(1, 3).Draw(rt, "layers") {
			for i := range rapid.IntRange(1, 8).Draw(rt, "files") {
				operate(rt, p.dir, path, fmt.Sprint(layer, i))
			}
			w = p.area(WorkOptions{Live: rapid.Bool().Draw(rt, "live")})
		}
		before := p.project()
		var after map[string]string
		p.in(w, func(dir string) (err error) {
			if seen, err := whole(dir); err != nil || !maps.Equal(seen, before) {
				return fmt.Errorf("the work area does not show the project: %w\n%q\n%q", err, seen, before)
			}
			for i := range rapid.IntRange(1, 25).Draw(rt, "operations") {
				operate(rt, dir, path, fmt.Sprint("op", i))
			}
			after, err = whole(dir)
			return err
		})
		if got := p.project(); !maps.Equal(got, before) {
			rt.Fatal("the project was changed")
		}
		checkChanges(rt, p.changes(w), before, after)
		// What it shows later is what it showed.
		if got := p.seen(w); !maps.Equal(got, after) {
			rt.Fatalf("mounted again:\n%q\n%q", got, after)
		}
		p.must(w.Drop(context.Background()))
	})
}

// operate does something to a directory; it may fail.
func operate(rt *rapid.T, dir string, path *rapid.Generator[string], text string) {
	at := filepath.Join(dir, path.Draw(rt, "path"))
	to := filepath.Join(dir, path.Draw(rt, "to"))
	switch rapid.IntRange(0, 9).Draw(rt, "what") {
	case 0, 1:
		_ = os.MkdirAll(filepath.Dir(at), 0o755)
		_ = os.WriteFile(at, []byte(text), 0o644)
	case 2:
		_ = os.RemoveAll(at)
	case 3:
		_ = os.Rename(at, to)
	case 4:
		_ = exec.Command("mv", "-T", at, to).Run()
	case 5:
		_ = os.Symlink(text, at)
	case 6:
		_ = os.Chmod(at, 0o755)
	case 7:
		if st, err := os.Lstat(at); err == nil && st.Mode().IsRegular() {
			if f, err := os.OpenFile(at, os.O_APPEND|os.O_WRONLY, 0); err == nil {
				_, _ = f.WriteString("+")
				f.Close()
			}
		}
	case 8:
		_ = os.MkdirAll(at, 0o755)
	case 9:
		_ = unix.Link(at, to)
	}
}

func checkChanges(rt *rapid.T, d *WorkDiff, before, after map[string]string) {
	if len(d.Refused) > 0 {
		rt.Fatalf("refused %v", d.Refused)
	}
	got, want := map[string]string{}, map[string]string{}
	for _, c := range d.Changes {
		switch c.Kind {
		case schemas.ChangeRename:
			got[c.From], got[c.Path] = "delete", "create"
			_, was, _ := strings.Cut(before[c.From], " ")
			_, is, _ := strings.Cut(after[c.Path], " ")
			if was != is {
				rt.Fatalf("renamed %q to %q, with other bytes", c.From, c.Path)
			}
		default:
			got[c.Path] = string(c.Kind)
		}
		if c.After != "" {
			_, is, _ := strings.Cut(after[c.Path], " ")
			if c.After != schemas.BlobRefOf([]byte(is)) {
				rt.Fatalf("%q: not the bytes that are there", c.Path)
			}
		}
	}
	for path, is := range after {
		was, had := before[path]
		switch {
		case !had:
			want[path] = "create"
		case was != is:
			want[path] = "modify"
		}
	}
	for path := range before {
		if _, has := after[path]; !has {
			want[path] = "delete"
		}
	}
	if !maps.Equal(got, want) {
		rt.Fatalf("got\n%q\nwant\n%q", got, want)
	}
}
