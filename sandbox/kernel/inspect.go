package kernel

import (
	"time"

	"github.com/aspis-dev/aspis/sandbox"
)

// Inspect reads the walls of a process that is held at its first stage. An
// error means that the process could not be looked at all; a wall that could
// not be checked is a wall that does not stand, not an error.
func Inspect(pid int, ex Expect) (sandbox.Evidence, error) {
	e := sandbox.Evidence{Pid: pid, At: time.Now()}
	for _, row := range sandbox.Table() {
		e.Walls = append(e.Walls, row.Wall(false, "not yet checked"))
	}
	return e, nil
}
