package container

import (
	"os"
	"strconv"
	"strings"
)

// maxTree bounds how many processes one look at a tree follows.
const maxTree = 65536

// treeUse counts the tasks of a process and all its descendants, and their
// resident memory in bytes. Shared pages count for each, so the sum is at
// least what the tree uses. Inside a pid namespace nothing leaves the tree:
// orphans become children of its first process.
func treeUse(pid int) (tasks, rss int64) {
	page := int64(os.Getpagesize())
	queue := []int{pid}
	for seen := 0; len(queue) > 0 && seen < maxTree; seen++ {
		pid, queue = queue[len(queue)-1], queue[:len(queue)-1]
		dir := "/proc/" + strconv.Itoa(pid)
		threads, err := os.ReadDir(dir + "/task")
		if err != nil {
			continue // ended meanwhile
		}
		tasks += int64(len(threads))
		if b, err := os.ReadFile(dir + "/statm"); err == nil {
			if f := strings.Fields(string(b)); len(f) > 1 {
				pages, _ := strconv.ParseInt(f[1], 10, 64)
				rss += pages * page
			}
		}
		for _, t := range threads {
			b, err := os.ReadFile(dir + "/task/" + t.Name() + "/children")
			if err != nil {
				continue
			}
			for f := range strings.FieldsSeq(string(b)) {
				if child, err := strconv.Atoi(f); err == nil {
					queue = append(queue, child)
				}
			}
		}
	}
	return tasks, rss
}
