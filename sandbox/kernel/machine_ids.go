package kernel

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/user"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
)

// idRanges are what makes the ids inside other than the caller's.
func (m machine) idRanges() Finding {
	f := Finding{Name: "id-ranges", Tried: "newuidmap and newgidmap in PATH, /etc/subuid and /etc/subgid"}
	if m.root {
		f.OK, f.Seen = true, "not needed by root, who may map any ids"
		return f
	}
	f.Walls = []sandbox.WallName{sandbox.WallUserIDs}
	for _, tool := range []string{"newuidmap", "newgidmap"} {
		p, err := exec.LookPath(tool)
		if err != nil {
			f.Seen = tool + " is not installed"
			f.Fix = "Install it: package uidmap on Debian and Ubuntu, shadow-utils on Fedora. Without it the program inside has the caller's own id."
			return f
		}
		info, err := os.Stat(p)
		var xattr [64]byte
		if n, xerr := unix.Getxattr(p, "security.capability", xattr[:]); err != nil || info.Mode()&os.ModeSetuid == 0 && (xerr != nil || n == 0) {
			f.Seen = fmt.Sprintf("%q has neither the set-user-id bit nor a file capability", p)
			f.Fix = "Reinstall the package that brings it."
			return f
		}
	}
	u, err := user.CurrentUser()
	name := strconv.Itoa(os.Getuid())
	if err == nil {
		name = u.Name
	}
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		ranges, err := user.ParseSubIDFileFilter(file, func(s user.SubID) bool {
			return s.Name == name || s.Name == strconv.Itoa(os.Getuid())
		})
		if err != nil || len(ranges) == 0 {
			f.Seen = fmt.Sprintf("%s has no range for %q", file, name)
			f.Fix = fmt.Sprintf("sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s", name)
			return f
		}
		f.Seen += fmt.Sprintf("%s: %d ids from %d; ", filepath.Base(file), ranges[0].Count, ranges[0].SubID)
	}
	f.Seen = strings.TrimSuffix(f.Seen, "; ")
	f.OK, f.Walls = true, nil
	return f
}
