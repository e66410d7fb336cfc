package stage

import (
	"os"
	"runtime"

	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // joins the namespaces before Go's runtime exists
)

func init() {
	// The first thread stays with the main goroutine. Goroutines of ours and
	// of libcontainer's enter other mount namespaces and end with their
	// thread, but Go can only park the first one, which would then stay there
	// for ever, and /proc/self would show that namespace as this process's.
	runtime.LockOSThread()
	if len(os.Args) < 2 {
		return
	}
	switch {
	case os.Args[1] == "init" && os.Getenv("_LIBCONTAINER_INITPIPE") != "":
		libcontainer.Init() // does not return
	case os.Args[1] == EnterMarker:
		awaitMapping()
	case os.Args[1] == enteredMarker:
		entered()
	}
}
