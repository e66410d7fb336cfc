package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/integration/vm/matrix"
)

const groupRoot = "/sys/fs/cgroup"

func mountGroups(g matrix.Groups) error {
	switch g {
	case matrix.NoGroups:
		return nil
	case matrix.V2, matrix.V2ReadOnly:
		return mount("cgroup2", groupRoot, "cgroup2", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "nsdelegate")
	}
	if err := mount("tmpfs", groupRoot, "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return err
	}
	for _, c := range []string{"memory", "pids", "cpu,cpuacct", "devices", "freezer"} {
		if err := mount("cgroup", filepath.Join(groupRoot, c), "cgroup", 0, c); err != nil {
			return err
		}
	}
	if g == matrix.V1 {
		return mount("cgroup", groupRoot+"/systemd", "cgroup", 0, "none,name=systemd")
	}
	return mount("cgroup2", groupRoot+"/unified", "cgroup2", 0, "")
}

// jobGroup makes the group that everything is tried in, as a service manager
// would have made it, and gives the directories to move a process into.
func jobGroup(c matrix.Cell) ([]string, error) {
	switch c.Groups {
	case matrix.NoGroups:
		return nil, nil
	case matrix.V1, matrix.Hybrid:
		return versionOne(c)
	}
	path := []string{"system.slice", "job.service"}
	if c.User {
		path = []string{"user.slice", "user-1000.slice", "session-1.scope"}
	}
	if c.Delegated {
		path = []string{"user.slice", "user-1000.slice", "user@1000.service", "app.slice", "job.scope"}
	}
	dir := groupRoot
	owned := false
	for _, name := range path {
		if err := write(filepath.Join(dir, "cgroup.subtree_control"), "+cpu +memory +pids"); err != nil {
			return nil, fmt.Errorf("hand controllers on: %w", err)
		}
		dir = filepath.Join(dir, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		owned = owned || name == "user@1000.service"
		if !owned {
			continue
		}
		// What systemd gives away with Delegate=yes.
		for _, f := range []string{"", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"} {
			if err := os.Chown(filepath.Join(dir, f), userID, userID); err != nil {
				return nil, err
			}
		}
	}
	return []string{dir}, nil
}

func versionOne(c matrix.Cell) ([]string, error) {
	var dirs []string
	for _, controller := range []string{"memory", "pids", "cpu,cpuacct"} {
		dir := filepath.Join(groupRoot, controller, "job")
		if err := os.Mkdir(dir, 0o755); err != nil {
			return nil, err
		}
		if c.Delegated {
			for _, f := range []string{"", "tasks", "cgroup.procs"} {
				if err := os.Chown(filepath.Join(dir, f), userID, userID); err != nil {
					return nil, err
				}
			}
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// join moves this process; what it starts is born there.
func join(dirs []string) error {
	for _, d := range dirs {
		if err := write(filepath.Join(d, "cgroup.procs"), strconv.Itoa(os.Getpid())); err != nil {
			return fmt.Errorf("enter the job's group: %w", err)
		}
	}
	return nil
}
