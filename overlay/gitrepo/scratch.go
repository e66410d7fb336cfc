package gitrepo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// scratchPrefix begins the names of directories that a process of ours uses
// for a moment.
const scratchPrefix = "scratch-"

// inScratch runs fn with a directory of its own in the shadow, and removes it.
// While it is in use it is locked, by which sweep knows those of processes that
// were killed.
func (r *Repo) inScratch(fn func(dir string) error) (err error) {
	dir, lock, err := r.makeScratch()
	if err != nil {
		return fmt.Errorf("make a directory for git: %w", err)
	}
	defer func() {
		err = errors.Join(err, os.RemoveAll(dir), lock.Close())
	}()
	return fn(dir)
}

func (r *Repo) makeScratch() (dir string, lock *os.File, err error) {
	// A sweep may take a directory between its making and its locking.
	for range 100 {
		if dir, err = os.MkdirTemp(r.shadow, scratchPrefix); err != nil {
			return "", nil, err
		}
		if lock, err = os.Open(dir); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", nil, err
		}
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			if _, err = os.Lstat(dir); err == nil {
				return dir, lock, nil
			}
		}
		lock.Close()
	}
	return "", nil, err
}

// Unused objects of ours are kept for this long. Git sets the time of an object
// anew when it is about to be written again.
const (
	keepObjects = 14 * 24 * time.Hour
	sweepAgain  = 24 * time.Hour
)

// sweep removes what killed processes left behind and, once a day, objects that
// nobody has written for long. Nothing else refers to them: what is kept of a
// candidate is kept elsewhere.
func (r *Repo) sweep(now time.Time) error {
	entries, err := os.ReadDir(r.shadow)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if at := filepath.Join(r.shadow, e.Name()); strings.HasPrefix(e.Name(), scratchPrefix) {
			if err := removeUnlocked(at); err != nil {
				return err
			}
		}
	}
	mark := filepath.Join(r.shadow, "swept")
	if st, err := os.Stat(mark); err == nil && now.Sub(st.ModTime()) < sweepAgain && !st.ModTime().After(now) {
		return nil
	}
	if err := r.sweepObjects(now); err != nil {
		return err
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return err
	}
	return os.Chtimes(mark, now, now)
}

// removeUnlocked removes a directory that no process uses.
func removeUnlocked(dir string) error {
	lock, err := os.Open(dir)
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil // in use
	}
	return os.RemoveAll(dir)
}

// sweepObjects removes old objects and shared indexes. Of a pack all files go
// at once, or it would be a damaged one.
func (r *Repo) sweepObjects(now time.Time) error {
	old := func(path string) bool {
		st, err := os.Lstat(path)
		return err == nil && st.Mode().IsRegular() && now.Sub(st.ModTime()) > keepObjects
	}
	var gone []string
	err := filepath.WalkDir(r.shadow, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return unlessAbsent(err)
		}
		rel, _ := filepath.Rel(r.shadow, path)
		if e.IsDir() {
			if rel != "." && rel != "objects" && !strings.HasPrefix(rel, "objects/") || rel == "objects/info" {
				return filepath.SkipDir
			}
			return nil
		}
		pack := ""
		if stem, ok := strings.CutSuffix(path, filepath.Ext(path)); ok && strings.HasPrefix(rel, "objects/pack/") {
			pack = stem + ".pack"
		}
		object := strings.HasPrefix(rel, "objects/") && pack == ""
		if (object || strings.HasPrefix(rel, "sharedindex.")) && old(path) || pack != "" && old(pack) {
			gone = append(gone, path)
		}
		return nil
	})
	for _, path := range gone {
		if err := os.Remove(path); err != nil && !absent(err) {
			return err
		}
	}
	return err
}
