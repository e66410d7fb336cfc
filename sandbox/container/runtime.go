package container

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/configs"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/internal/stage"
	"github.com/aspis-dev/aspis/sandbox/seccomp"
)

// Options are what a Runtime needs to know of the machine.
type Options struct {
	// StateDir keeps one small directory for each running sandbox, so that
	// CollectLeftovers can clean up after a host that was killed, and the
	// compiled seccomp program.
	StateDir string
	// Space is where sandboxes are born. It must outlive them.
	Space *MountSpace
	// UIDBase is the first of 65,536 user and group ids that belong to nobody
	// on this machine. Zero means DefaultUIDBase. Not used in a user namespace.
	UIDBase uint32
}

// DefaultUIDBase lies far above the accounts and subordinate ids that
// distributions hand out.
const DefaultUIDBase = 2_000_000_000

// startTimeout bounds a start whose context has no deadline.
const startTimeout = 30 * time.Second

// Runtime starts sandboxes. Its methods may be called at the same time.
type Runtime struct {
	opt     Options
	who     Identity
	groups  hierarchy
	ids     ids
	filter  []byte
	outward func() ([]byte, error) // the filter where there is a Relay
	self    self
	dev     string // the sandboxes' /dev, in the MountSpace
	noUsers error  // why there is no user namespace, if there is none

	warm     warm
	covered  bool        // something is mounted over parts of /proc
	procShut atomic.Bool // and the kernel has refused a new one for it
}

var _ sandbox.Runtime = (*Runtime)(nil)

// New looks at the machine once. It fails only where no sandbox of any kind
// could be started; a wall that cannot be had is for the evidence to report.
func New(opt Options) (*Runtime, error) {
	if opt.Space == nil {
		return nil, errors.New("container runtime needs a mount space")
	}
	if opt.UIDBase == 0 {
		opt.UIDBase = DefaultUIDBase
	}
	if err := os.MkdirAll(filepath.Join(opt.StateDir, runDir), 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	// What libcontainer has to say comes back as errors; its log would go to
	// standard error in the middle of ours.
	logrus.SetOutput(io.Discard)
	r := &Runtime{opt: opt}
	r.warm.pools = map[string]*pool{}
	var err error
	if r.who, err = CurrentIdentity(); err != nil {
		return nil, err
	}
	if r.groups, err = readHierarchy(); err != nil {
		return nil, err
	}
	if err := r.tryGroups(); err != nil {
		return nil, err
	}
	r.noUsers = probeUserNS()
	if r.ids, err = chooseIDs(r.who, opt.UIDBase, r.noUsers == nil); err != nil {
		return nil, err
	}
	if r.filter, _, err = seccomp.Cached(filepath.Join(opt.StateDir, "seccomp"), seccomp.Default()); err != nil {
		return nil, fmt.Errorf("seccomp program: %w", err)
	}
	if len(r.filter) == 0 {
		return nil, errors.New("seccomp program is empty")
	}
	r.outward = sync.OnceValues(func() ([]byte, error) {
		filter, _, err := seccomp.Cached(filepath.Join(opt.StateDir, "seccomp"), seccomp.Profile{Egress: true})
		return filter, err
	})
	if r.self, err = findSelf(opt.Space); err != nil {
		return nil, err
	}
	if r.covered, err = procCovered(); err != nil {
		return nil, err
	}
	if r.covered {
		// Refused where the covers are another's, which Start then meets.
		_ = opt.Space.Do(func() error { return uncover(filepath.Join(opt.Space.Dir(), "proc")) })
	}
	r.dev = filepath.Join(opt.Space.Dir(), "dev-"+rand.Text())
	if err := opt.Space.Do(func() error { return buildDevices(r.dev) }); err != nil {
		return nil, err
	}
	return r, nil
}

// tryGroups finds the control groups that can be used, and leaves a record
// while it does, as for a sandbox.
func (r *Runtime) tryGroups() error {
	id := newID()
	dir, err := r.record(id)
	if err != nil {
		return err
	}
	if err := r.opt.Space.Do(func() error { return r.groups.try(id) }); err != nil {
		return err // the record stays, for what could not be removed
	}
	return os.RemoveAll(dir)
}

// record writes down what will be made for a sandbox.
func (r *Runtime) record(id string) (dir string, err error) {
	rec, err := ownRecord()
	if err != nil {
		return "", err
	}
	rec.Groups = r.groups.plan(id)
	dir = filepath.Join(r.opt.StateDir, runDir, id)
	return dir, writeRecord(dir, rec)
}

// Name identifies the runtime in evidence.
func (r *Runtime) Name() string { return "libcontainer" }

// OwnIDs are the user and group, as this process sees them, that programs run as
// unless their Spec says otherwise; ok is false where these are the caller's own,
// and so may own things already.
func (r *Runtime) OwnIDs() (ids sandbox.IDs, ok bool) {
	return sandbox.IDs{User: r.ids.owner, Group: r.ids.owner}, r.ids.userNS && !r.who.UserNS
}

// WhyNoUserNamespace says what keeps this machine from giving sandboxes a user
// namespace, and what would allow it. It is empty where they have one.
func (r *Runtime) WhyNoUserNamespace() string {
	if r.noUsers == nil {
		return ""
	}
	return whyNoUserNS(r.noUsers)
}

// Start builds the sandbox and holds it at the first stage with its evidence
// taken. Nothing is left behind when it fails.
func (r *Runtime) Start(ctx context.Context, spec sandbox.Spec) (sandbox.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if p := r.takeWarm(ctx, &spec); p != nil {
		return p, nil
	}
	p, err := r.startCold(ctx, spec, nil)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// ahead says of a sandbox that is made ahead what comes later.
type ahead struct{ places []string } // where something will be mounted

// startCold makes a sandbox from nothing. later is nil where it is for now.
func (r *Runtime) startCold(ctx context.Context, spec sandbox.Spec, later *ahead) (*process, error) {
	shut := r.procShut.Load()
	p, err := r.start(ctx, spec, later, shut)
	if err == nil || !r.covered || shut || ctx.Err() != nil {
		return p, err
	}
	// Where an outer container covers parts of /proc, the kernel gives no new
	// one. Whether that was the reason shows in the second start, with the old.
	p, again := r.start(ctx, spec, later, true)
	if again != nil {
		return nil, err
	}
	r.procShut.Store(true)
	return p, nil
}

// start builds one sandbox. oldProc shows the present /proc in it.
func (r *Runtime) start(ctx context.Context, spec sandbox.Spec, later *ahead, oldProc bool) (_ *process, err error) {
	without := map[sandbox.WallName]bool{}
	for _, w := range spec.Without {
		without[w] = true
	}
	if spec.Exchangeable && without[sandbox.WallMountNamespace] {
		return nil, fmt.Errorf("sandbox %q: its mounts cannot be exchanged without a mount namespace of its own", spec.Name)
	}
	filter, err := r.filterFor(&spec)
	if err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", spec.Name, err)
	}
	header := stage.Header{Path: spec.Path, Args: spec.Args, Filter: filter, KeepFiles: without[sandbox.WallFileDescriptors], Init: spec.Init}
	if breaksFilter(without) {
		header.Filter = nil
	}
	word, err := header.Encode()
	if err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", spec.Name, err)
	}
	p, err := r.newProcess(spec, without)
	if err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", spec.Name, err)
	}
	defer func() {
		if err != nil {
			clean, stop := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer stop()
			err = fmt.Errorf("sandbox %q: %w", spec.Name, errors.Join(err, p.Close(clean)))
		}
	}()
	switch {
	case later != nil:
		p.root.places = later.places
	case spec.Exchangeable:
		p.root.places = targets(spec.Mounts)
	}
	// The start itself cannot be interrupted but by killing what it started.
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(killed)
		_ = p.killAll() // shows in what launch gives
	})
	err = r.opt.Space.Do(func() error {
		if ctx.Err() != nil { // while it waited for its turn
			return context.Cause(ctx)
		}
		return p.launch(r, oldProc)
	})
	if !stop() {
		<-killed
	}
	p.pipes.CloseChild()
	if err != nil {
		return nil, err
	}
	if err := p.note(); err != nil {
		return nil, err
	}
	err = p.pipes.Handshake(ctx, word)
	if cerr := p.fifo.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, fmt.Errorf("program %q: %w", spec.Path, err)
	}
	if err := p.limitAfterStart(); err != nil {
		return nil, err
	}
	if spec.Exchangeable && later == nil {
		if err := p.attach(spec.Mounts, false); err != nil {
			return nil, err
		}
	}
	if spec.Relay != nil && later == nil && !breaks(without, sandbox.WallNetworkNamespace) {
		if p.relay, err = openRelay(p.pid, spec.Relay); err != nil {
			return nil, err
		}
	}
	if err := p.inspect(filter); err != nil {
		return nil, err
	}
	p.evidence.Runtime = r.Name()
	if oldProc {
		explainProc(p.evidence.Walls)
	}
	return p, nil
}

// filterFor gives the system calls that a sandbox may make.
func (r *Runtime) filterFor(spec *sandbox.Spec) ([]byte, error) {
	if spec.Relay == nil {
		return r.filter, nil
	}
	filter, err := r.outward()
	if err == nil && len(filter) == 0 {
		err = errors.New("it is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("seccomp program: %w", err)
	}
	return filter, nil
}

// Examine builds a sandbox as any other, in which nothing runs but the first
// stage, takes its evidence and removes it. protect is as in a Spec.
func (r *Runtime) Examine(ctx context.Context, limits sandbox.Limits, protect []string) (sandbox.Evidence, error) {
	p, err := r.Start(ctx, sandbox.Spec{
		Name: "examined", Path: stage.Path, Args: []string{stage.Path}, Dir: "/", Protect: protect, Limits: limits,
	})
	if err != nil {
		return sandbox.Evidence{}, err
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer stop()
	return p.Evidence(), p.Close(ctx)
}

// launch runs on the MountSpace's thread.
func (p *process) launch(r *Runtime, oldProc bool) (err error) {
	p.launched = true
	p.root.self = r.self
	defer func() {
		if p.without[sandbox.WallMountNamespace] {
			return // the sandbox's own, until Close
		}
		if derr := p.root.drop(); err == nil {
			err = derr
		}
	}()
	if err := p.root.build(); err != nil {
		return fmt.Errorf("build root file system: %w", err)
	}
	config := buildConfig(&p.spec, p.root.dir, r.dev, p.ids, p.group.holds["cpu"], p.without)
	if oldProc {
		config.Mounts[procMount] = presentProc(unix.MS_RDONLY | quiet)
		config.MaskPaths, config.ReadonlyPaths = nil, nil
	}
	c, err := loadContainer(p.libDir, p.id, config, p.group)
	if err != nil {
		return fmt.Errorf("prepare container: %w", err)
	}
	user := p.ids.user
	switch {
	case p.without[sandbox.WallUserIDs]:
		user = 0
	case !config.Namespaces.Contains(configs.NEWUSER):
		user = p.ids.owner
	}
	p.lib = &libcontainer.Process{
		Args:   r.self.command(),
		Env:    environment(&p.spec, p.without),
		UID:    user,
		GID:    user,
		Cwd:    p.spec.Dir,
		Stdin:  p.pipes.Child[0],
		Stdout: p.pipes.Child[1],
		Stderr: p.pipes.Child[2],
		Init:   true,
	}
	if p.without[sandbox.WallFileDescriptors] {
		f, err := os.Open("/")
		if err != nil {
			return err
		}
		defer f.Close()
		p.lib.ExtraFiles = []*os.File{f}
	}
	leave, err := p.group.enter()
	if err != nil {
		return fmt.Errorf("enter control group: %w", err)
	}
	defer func() {
		if lerr := leave(); err == nil && lerr != nil {
			err = fmt.Errorf("leave control group: %w", lerr)
		}
	}()
	if err := c.Start(p.lib); err != nil {
		return fmt.Errorf("start container: %w", errors.Join(err, p.space.reapLost()))
	}
	if p.pid, err = p.lib.Pid(); err != nil {
		return err
	}
	p.space.keep(p.pid)
	p.started.Store(true)
	p.watch()
	p.fifo, err = openFifo(filepath.Join(p.libDir, p.id, "exec.fifo"))
	return err
}

// openFifo lets libcontainer's init go on to the first stage: it waits for
// somebody to read one byte that nobody needs. A file opened both ways counts
// as that reader and never waits itself. It must stay open until the first
// stage has spoken.
func openFifo(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("let the container go: %w", err)
	}
	return f, nil
}

// probeUserNS asks the kernel for a user namespace and says why there is none.
// The program named does not exist, so that a kernel that agrees fails one
// step later and nothing runs.
func probeUserNS() error {
	_, err := os.StartProcess("/proc/self/no-such-program", []string{"x"}, &os.ProcAttr{
		Sys: &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER},
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
