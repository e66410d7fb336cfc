package stage

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// EnterMarker as the first argument makes the program wait in its new user
// namespace until its ids are mapped, and then run the rest of its arguments.
const EnterMarker = "aspis:user-namespace"

// enteredMarker is the same program after its ids are mapped.
const enteredMarker = "aspis:user-namespace:mapped"

// EnterReady is what the parent reads when the namespace is of use.
const EnterReady = "ok"

const (
	enterFromParent = 3
	enterToParent   = 4
	enterNote       = 5
)

// MaxNote bounds what a parent may hand over, in bytes.
const MaxNote = 1 << 20

// Inner tells that this process is one that was started in a user namespace by
// a parent of the same program, and Note is what the parent handed over. Both
// are set before main and not changed after.
var (
	Inner bool
	Note  []byte
)

// awaitMapping holds the program until its ids are mapped, and then executes
// it once more: only as user 0 does an execution give the capabilities back
// that the first one, as nobody, has lost.
func awaitMapping() {
	var word [1]byte
	if n, err := unix.Read(enterFromParent, word[:]); n != 1 || err != nil || word[0] != Go {
		os.Exit(125)
	}
	_ = unix.Close(enterFromParent)
	args := append([]string{os.Args[0], enteredMarker}, os.Args[2:]...)
	enterFailed("execute the program again", unix.Exec("/proc/self/exe", args, os.Environ()))
}

// entered runs in the mapped namespace: it tells the parent, and lets the
// program begin with its own arguments.
func entered() {
	// The kernel forgets this request when an execution raises privileges.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		enterFailed("ask to die with the parent", err)
	}
	// A parent that died before the request above has closed the pipe.
	if n, err := unix.Write(enterToParent, []byte(EnterReady)); err != nil || n != len(EnterReady) {
		os.Exit(125)
	}
	_ = unix.Close(enterToParent)
	Inner = true
	note := os.NewFile(enterNote, "note")
	b, err := io.ReadAll(io.LimitReader(note, MaxNote))
	if err != nil {
		os.Exit(125)
	}
	_ = note.Close()
	Note = b
	os.Args = append(os.Args[:1:1], os.Args[2:]...)
}

func enterFailed(doing string, err error) {
	_, _ = unix.Write(enterToParent, fmt.Appendf(nil, "cannot %s: %v", doing, err))
	os.Exit(125)
}
