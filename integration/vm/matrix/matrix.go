// Package matrix lists the kinds of machine that isolation is tried on in
// virtual machines, what each must come to, and what a machine tells of itself.
//
// Both sides know it: the host that boots the machines and judges them, and the
// first process inside. It starts nothing.
package matrix

// Cell is one kind of machine.
type Cell struct {
	Name   string
	About  string // one phrase, for the report
	Kernel Kernel
	Groups Groups
	// User runs everything as an ordinary user, else it is root.
	User bool
	// Ranges gives the user newuidmap and a range of ids.
	Ranges bool
	// Delegated gives the user a control group to divide, as systemd does for
	// a user's own services.
	Delegated bool
	// Sysctls are set before anything is tried, by path below /proc/sys.
	Sysctls map[string]string
	// NoOverlay leaves the overlay file system's module out.
	NoOverlay bool
	// Proc is "", "hidepid" (others' processes are not shown) or "covered"
	// (something is mounted over parts of it, as container engines do).
	Proc string

	Want Want
}

// Kernel names a kernel by the Debian package that depends on its newest build.
type Kernel string

// The kernels of the matrix.
const (
	Debian12 Kernel = "linux-image-cloud-amd64"
	Linux612 Kernel = "linux-image-6.12-cloud-amd64"
)

// Groups says how control groups are mounted.
type Groups string

// The ways of mounting control groups.
const (
	V2         Groups = "v2"
	V2ReadOnly Groups = "v2, read-only"
	V1         Groups = "v1"
	Hybrid     Groups = "hybrid"
	NoGroups   Groups = "none"
)

// Want is what a machine must come to.
type Want struct {
	// Mode is the assurance mode, exactly. Empty means that no sandbox can be built.
	Mode string
	// Missing are the walls that do not stand, exactly.
	Missing []string
	// Remedy is a part of what a person is told to do; empty where nothing is missing.
	Remedy string
	// NoSnapshots tells that sandboxes can be built and snapshots cannot be
	// shown in them, so that no gate allows.
	NoSnapshots bool
	// Tests are run inside; all of them must pass and none be skipped.
	Tests []Test
}

// Test is a set of tests from one compiled package.
type Test struct {
	Package string // the package's directory, such as "sandbox/container"
	Run     string // as for go test -run
	Skip    string // as for go test -skip
}

// Report is what a machine tells of itself.
type Report struct {
	Cell    string
	Kernel  string    // its release
	Fault   string    `json:",omitempty"` // what kept it from telling more
	Doctor  Command   // aspis doctor --format json
	Check   Command   // aspis check, as JSON
	Require Command   // the same with a requirement of isolation
	Tests   []Outcome `json:",omitempty"`
	Boot    float64   // seconds from the kernel's start to the first command
	Seconds float64   // from there to the end
}

// Command is a command that was run.
type Command struct {
	Code           int
	Stdout, Stderr string `json:",omitempty"`
}

// Outcome is how one compiled package's tests ended.
type Outcome struct {
	Package                 string
	Code                    int
	Passed, Failed, Skipped []string `json:",omitempty"`
	// Output is the end of what was printed, where something did not pass.
	Output string `json:",omitempty"`
}
