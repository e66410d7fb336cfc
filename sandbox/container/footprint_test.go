package container

import (
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// footprint is all that a sandbox could leave behind: processes whose parent
// is this one, mounts of the machine and of the mount space, control groups,
// directories, and open files of this process.
func footprint(t *testing.T, rt *Runtime) map[string][]string {
	t.Helper()
	runtime.GC() // libcontainer leaves the files of a failed start to the collector
	runtime.GC()
	f := map[string][]string{}
	for name, path := range map[string]string{
		"children": "/proc/self/task",
		"runs":     filepath.Join(rt.opt.StateDir, runDir),
		"files":    "/proc/self/fd",
	} {
		entries, err := os.ReadDir(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			switch name {
			case "children":
				b, _ := os.ReadFile(filepath.Join(path, e.Name(), "children"))
				f[name] = append(f[name], strings.Fields(string(b))...)
			case "files":
				target, err := os.Readlink(filepath.Join(path, e.Name()))
				if err == nil && !strings.HasPrefix(target, "/proc/") {
					f[name] = append(f[name], target)
				}
			default:
				f[name] = append(f[name], e.Name())
			}
		}
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	// Others mount things on this machine as well. Ours would be there, or
	// this process would be in another namespace than before.
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, rt.opt.Space.Dir()) || strings.Contains(line, " / / ") {
			f["mounts"] = append(f["mounts"], line)
		}
	}
	err = rt.opt.Space.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/mountinfo")
		if err != nil {
			return err
		}
		f["space mounts"] = strings.Split(string(b), "\n")
		return filepath.WalkDir(rt.opt.Space.Dir(), func(p string, d fs.DirEntry, err error) error {
			if err == nil && strings.Contains(filepath.Base(p), idPrefix) {
				f["space"] = append(f["space"], p)
			}
			return nil
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	for c, home := range rt.groups.home {
		found, err := filepath.Glob(filepath.Join(home, idPrefix+"*"))
		if err != nil {
			t.Fatal(err)
		}
		f["groups "+c] = append(f["groups "+c], found...)
	}
	for _, v := range f {
		slices.Sort(v)
	}
	return f
}

func compare(t *testing.T, before, after map[string][]string) {
	t.Helper()
	if d := cmp.Diff(before, after); d != "" {
		t.Errorf("left behind (-before +after):\n%s", d)
	}
}
