package container

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// whyNoUserNS turns the kernel's refusal of a user namespace into what a
// person can do about it.
func whyNoUserNS(err error) string {
	switch {
	case sysctl("kernel/unprivileged_userns_clone") == "0":
		return "unprivileged user namespaces are switched off; allow them with: sysctl kernel.unprivileged_userns_clone=1"
	case sysctl("user/max_user_namespaces") == "0":
		return "user namespaces are switched off; allow them with: sysctl user.max_user_namespaces=15000"
	case errors.Is(err, unix.ENOSPC):
		return "the limit of user namespaces is reached; raise it with: sysctl user.max_user_namespaces"
	case errors.Is(err, unix.EPERM) && sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
		return "AppArmor forbids user namespaces to this program; load a profile for it that has the rule userns (contrib/apparmor/aspis is one), or run: sysctl kernel.apparmor_restrict_unprivileged_userns=0"
	case errors.Is(err, unix.EPERM) && os.Geteuid() == 0:
		return "user namespaces are forbidden here, as by the seccomp filter of a surrounding container, and without CAP_SYS_ADMIN there is no other way; run that container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined"
	case errors.Is(err, unix.EPERM):
		return "user namespaces are forbidden here, as by the seccomp filter of a surrounding container; run as root, or give that container a filter that allows clone and unshare"
	}
	return fmt.Sprintf("user namespaces cannot be made: %v", err)
}

func sysctl(name string) string {
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
