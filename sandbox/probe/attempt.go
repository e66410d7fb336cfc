package probe

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/aspis-dev/aspis/sandbox"
)

// State is how an attempt ended.
type State string

// The states.
const (
	Blocked       State = "blocked"
	Open          State = "open"
	NotApplicable State = "not-applicable"
)

// Result is one attempt's line.
type Result struct {
	Name  string           `json:"name"`
	Wall  sandbox.WallName `json:"wall"` // that should be in the way
	State State            `json:"state"`
	// Seen is what the kernel answered. It comes from inside and must be
	// escaped before it reaches a terminal.
	Seen string `json:"seen"`
}

// Attempt is one way out. The Wall is the one that is meant to be in its way,
// though others mostly are as well.
type Attempt struct {
	Name string
	Wall sandbox.WallName
	try  func(*Facts) Result
}

// Facts are what the host tells the program about what lies outside.
type Facts struct {
	Nonce    string   `json:"nonce"`
	HostPid  int      `json:"hostPid"`
	Files    []string `json:"files"`    // host paths of canaries that everybody may write
	Shown    []string `json:"shown"`    // inside paths that must not be writable
	Secret   string   `json:"secret"`   // host path that must not be readable
	TCP      []string `json:"tcp"`      // listeners of the host
	UDP      string   `json:"udp"`      // a listener of the host
	Abstract string   `json:"abstract"` // a unix socket of the host, without its @
	Socket   string   `json:"socket"`   // another one's path
	Env      []string `json:"env"`      // names that were given
	Host     string   `json:"host"`     // the machine's name
	Nested   bool     `json:"nested"`   // the host is in a user namespace itself
	Pids     int      `json:"pids"`
	FileMax  int      `json:"openFiles"`
	Memory   int64    `json:"memory"`
	Tmp      int64    `json:"tmp"`
}

func blocked(format string, args ...any) Result {
	return Result{State: Blocked, Seen: fmt.Sprintf(format, args...)}
}

func open(format string, args ...any) Result {
	return Result{State: Open, Seen: fmt.Sprintf(format, args...)}
}

func notApplicable(format string, args ...any) Result {
	return Result{State: NotApplicable, Seen: fmt.Sprintf(format, args...)}
}

// answered judges a call by its error. reached are the errors that the kernel
// gives only after it has allowed the call, for attempts that ask for something
// that can do no harm.
func answered(err error, reached ...syscall.Errno) Result {
	var errno syscall.Errno
	switch {
	case err == nil:
		return open("it was done")
	case errors.As(err, &errno) && slices.Contains(reached, errno):
		return open("it was allowed, and ended with: %v", errno)
	}
	return blocked("%v", err)
}

// called is answered for a raw call.
func called(errno syscall.Errno, reached ...syscall.Errno) Result {
	if errno == 0 {
		return answered(nil)
	}
	return answered(errno, reached...)
}

// Attempts gives all that are tried in one container, in their order.
func Attempts() []Attempt {
	return slices.Concat(fileAttempts(), mountAttempts(), processAttempts(), socketAttempts(), kernelAttempts(), identityAttempts())
}

// Exhaustions gives those that may end the whole container, each of which is
// tried in one of its own.
func Exhaustions() []Attempt { return exhaustionAttempts() }
