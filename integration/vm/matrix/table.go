package matrix

// Table gives all kinds of machine.
func Table() []Cell {
	return []Cell{
		{Name: "v2-root", About: "root, control groups v2", Kernel: Debian12, Groups: V2, Ranges: true,
			Want: Want{Mode: isolated, Tests: []Test{iso}}},
		{Name: "v2-user", About: "ordinary user, newuidmap, delegated control group", Kernel: Debian12, Groups: V2, User: true, Ranges: true, Delegated: true,
			Want: Want{Mode: isolated, Tests: []Test{isoUser}}},
		{Name: "v2-user-undelegated", About: "ordinary user, newuidmap, no delegated control group", Kernel: Debian12, Groups: V2, User: true, Ranges: true,
			Want: Want{Mode: isolated}},
		{Name: "v2-user-single", About: "ordinary user, no newuidmap, delegated control group", Kernel: Debian12, Groups: V2, User: true, Delegated: true,
			Want: Want{Mode: isolated}},
		{Name: "v2-user-bare", About: "ordinary user, no newuidmap, no delegated control group", Kernel: Debian12, Groups: V2, User: true,
			Want: Want{Mode: isolated}},
		{Name: "userns-off", About: "ordinary user, unprivileged user namespaces off", Kernel: Debian12, Groups: V2, User: true, Ranges: true, Delegated: true,
			Sysctls: map[string]string{"kernel/unprivileged_userns_clone": "0"},
			Want:    Want{Remedy: "sysctl kernel.unprivileged_userns_clone=1"}},
		{Name: "userns-none", About: "ordinary user, no user namespaces at all", Kernel: Debian12, Groups: V2, User: true, Ranges: true, Delegated: true,
			Sysctls: map[string]string{"user/max_user_namespaces": "0"},
			Want:    Want{Remedy: "sysctl user.max_user_namespaces=15000"}},
		{Name: "userns-none-root", About: "root, no user namespaces at all", Kernel: Debian12, Groups: V2, Ranges: true,
			Sysctls: map[string]string{"user/max_user_namespaces": "0"},
			Want:    Want{Mode: mediated, Missing: []string{"user-namespace"}, Remedy: "user.max_user_namespaces"}},
		{Name: "v2-read-only-root", About: "root, control groups v2 read-only", Kernel: Debian12, Groups: V2ReadOnly, Ranges: true,
			Want: Want{Mode: isolated}},
		{Name: "no-groups-root", About: "root, no control groups mounted", Kernel: Debian12, Groups: NoGroups, Ranges: true,
			Want: Want{Mode: isolated}},
		{Name: "v1-root", About: "root, control groups v1", Kernel: Debian12, Groups: V1, Ranges: true,
			Want: Want{Mode: isolated}},
		{Name: "v1-user", About: "ordinary user, control groups v1", Kernel: Debian12, Groups: V1, User: true, Ranges: true,
			Want: Want{Mode: isolated}},
		{Name: "hybrid-root", About: "root, control groups v1 with v2 beside them", Kernel: Debian12, Groups: Hybrid, Ranges: true,
			Want: Want{Mode: isolated}},
		{Name: "no-overlay-root", About: "root, no overlay file system", Kernel: Debian12, Groups: V2, Ranges: true, NoOverlay: true,
			Want: Want{Mode: isolated, NoSnapshots: true, Remedy: "sudo modprobe overlay"}},
		{Name: "hidepid-user", About: "ordinary user, /proc with hidepid=2", Kernel: Debian12, Groups: V2, User: true, Ranges: true, Delegated: true, Proc: "hidepid",
			Want: Want{Mode: isolated}},
		{Name: "covered-proc-user", About: "ordinary user, a part of /proc covered", Kernel: Debian12, Groups: V2, User: true, Ranges: true, Delegated: true, Proc: "covered",
			Want: Want{Mode: "gated", Missing: []string{"worktree-unreachable", "proc-masked"}, Remedy: "systempaths=unconfined"}},
		{Name: "new-root", About: "root, Linux 6.12, AppArmor on", Kernel: Linux612, Groups: V2, Ranges: true,
			Want: Want{Mode: isolated}},
		{Name: "new-user", About: "ordinary user, Linux 6.12, AppArmor on", Kernel: Linux612, Groups: V2, User: true, Ranges: true, Delegated: true,
			Want: Want{Mode: isolated}},
	}
}

const (
	isolated = "isolated"
	mediated = "mediated-write"
)

var (
	iso     = Test{Package: "integration", Run: "^TestISO_(ESCAPE|NET|EVIDENCE|ROOTLESS)$"}
	isoUser = Test{Package: "integration", Run: "^TestISO_(ESCAPE|NET|EVIDENCE)$"}
)

// Find gives one kind of machine by its name.
func Find(name string) (Cell, bool) {
	for _, c := range Table() {
		if c.Name == name {
			return c, true
		}
	}
	return Cell{}, false
}
