package kernel

import (
	"fmt"
	"time"

	"github.com/aspis-dev/aspis/sandbox"
)

// Inspect reads the walls of a process that is held at its first stage. An
// error means that the process could not be looked at at all; a wall that
// could not be checked is a wall that does not stand, not an error.
//
// The caller must not have waited for the process's end, so that its number
// is still its own.
func Inspect(pid int, ex Expect) (sandbox.Evidence, error) {
	at := time.Now()
	f, err := gather(pid, ex)
	if err != nil {
		return sandbox.Evidence{}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	return sandbox.Evidence{Pid: pid, At: at, Walls: f.judge()}, nil
}

// verdict on one wall: what is wrong, or else what was seen.
type verdict struct {
	standing bool
	seen     string
}

func stands(format string, args ...any) verdict { return verdict{true, fmt.Sprintf(format, args...)} }

func falls(format string, args ...any) verdict { return verdict{false, fmt.Sprintf(format, args...)} }

// unknown is the verdict where a fact could not be read.
func unknown(err error) verdict { return falls("could not be checked: %v", err) }

// judge gives every wall of the table, in its order. A wall without a check
// does not stand.
func (f *facts) judge() []sandbox.Wall {
	rows := sandbox.Table()
	walls := make([]sandbox.Wall, len(rows))
	for i, row := range rows {
		v := falls("there is no check for it")
		if check := checks[row.Name]; check != nil {
			v = check(f)
		}
		walls[i] = row.Wall(v.standing, v.seen)
	}
	return walls
}

var checks = map[sandbox.WallName]func(*facts) verdict{
	sandbox.WallUserNamespace:       (*facts).userNamespace,
	sandbox.WallUserIDs:             (*facts).userIDs,
	sandbox.WallCapabilities:        (*facts).capabilities,
	sandbox.WallNoNewPrivileges:     (*facts).noNewPrivileges,
	sandbox.WallSeccomp:             (*facts).seccomp,
	sandbox.WallMountNamespace:      (*facts).mountNamespace,
	sandbox.WallRootFilesystem:      (*facts).rootFilesystem,
	sandbox.WallSnapshotReadOnly:    (*facts).snapshotReadOnly,
	sandbox.WallWorktreeUnreachable: (*facts).worktreeUnreachable,
	sandbox.WallHostPathsUnwritable: (*facts).hostPathsUnwritable,
	sandbox.WallDevices:             (*facts).devices,
	sandbox.WallProcMasked:          (*facts).procMasked,
	sandbox.WallSysMasked:           (*facts).sysMasked,
	sandbox.WallPIDNamespace:        (*facts).pidNamespace,
	sandbox.WallIPCNamespace:        ownNamespace("ipc"),
	sandbox.WallUTSNamespace:        ownNamespace("uts"),
	sandbox.WallCgroupNamespace:     ownNamespace("cgroup"),
	sandbox.WallNetworkNamespace:    (*facts).networkNamespace,
	sandbox.WallNetworkInterfaces:   (*facts).networkInterfaces,
	sandbox.WallUnixSockets:         (*facts).unixSockets,
	sandbox.WallFileDescriptors:     (*facts).fileDescriptors,
	sandbox.WallSessionKeyring:      (*facts).sessionKeyring,
	sandbox.WallEnvironment:         (*facts).environment,
	sandbox.WallMemoryLimit:         (*facts).memoryLimit,
	sandbox.WallPidsLimit:           (*facts).pidsLimit,
	sandbox.WallOpenFilesLimit:      (*facts).openFilesLimit,
	sandbox.WallCPULimit:            (*facts).cpuLimit,
	sandbox.WallClockLimit:          (*facts).clockLimit,
}
