package supervise

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxTree bounds how many processes one look at a tree follows.
const maxTree = 65536

// Tree gives the process and all its descendants, parents first. Processes
// that end meanwhile are left out.
func Tree(pid int) []int {
	tree := []int{pid}
	for i := 0; i < len(tree) && len(tree) < maxTree; i++ {
		dir := "/proc/" + strconv.Itoa(tree[i]) + "/task/"
		threads, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, t := range threads {
			b, err := os.ReadFile(dir + t.Name() + "/children")
			if err != nil {
				continue
			}
			for f := range strings.FieldsSeq(string(b)) {
				if child, err := strconv.Atoi(f); err == nil {
					tree = append(tree, child)
				}
			}
		}
	}
	return tree
}

// use counts the tasks of a tree and its resident memory in bytes. Shared
// pages count for each process, so the sum is at least what the tree uses.
func use(tree []int) (tasks, rss int64) {
	page := int64(os.Getpagesize())
	for _, pid := range tree {
		dir := "/proc/" + strconv.Itoa(pid)
		threads, err := os.ReadDir(dir + "/task")
		if err != nil {
			continue
		}
		tasks += int64(len(threads))
		b, err := os.ReadFile(dir + "/statm")
		if err != nil {
			continue
		}
		if f := strings.Fields(string(b)); len(f) > 1 {
			pages, _ := strconv.ParseInt(f[1], 10, 64)
			rss += pages * page
		}
	}
	return tasks, rss
}

// maxKillRounds bounds KillDescendants against a tree that forks as fast as
// it dies.
const maxKillRounds = 64

// KillDescendants ends everything below a process, which must be killed by
// its owner afterwards and not before: as long as it lives, and is the parent
// of its tree's orphans, nothing leaves the tree. All are stopped before any
// is killed, so that none forks meanwhile.
func KillDescendants(root int) {
	for range maxKillRounds {
		below := Tree(root)[1:]
		for _, pid := range below {
			_ = unix.Kill(pid, unix.SIGSTOP) // ended meanwhile, or not ours to kill
		}
		for _, pid := range below {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if alive(below) == 0 {
			return
		}
	}
}

// alive counts those that are not yet zombies.
func alive(pids []int) (n int) {
	for _, pid := range pids {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue
		}
		if i := strings.LastIndexByte(string(b), ')'); i < 0 || i+2 >= len(b) || b[i+2] != 'Z' {
			n++
		}
	}
	return n
}
