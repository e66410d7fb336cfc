package containerd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/opencontainers/go-digest"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/internal/stage"
	"github.com/aspis-dev/aspis/sandbox/seccomp"
)

// Options say which daemon, which image and which of the daemon's runtimes.
type Options struct {
	// Address is the daemon's socket. Empty means DefaultAddress.
	Address string
	// Namespace keeps our containers apart from others in the same daemon.
	// Empty means DefaultNamespace. The image must be there.
	Namespace string
	// Image is the image's name in the daemon, Digest what it must be:
	// "sha256:<hex>" of its manifest or index.
	Image, Digest string
	// Runtime is containerd's name of a runtime, such as
	// "io.containerd.runsc.v1". Empty means DefaultRuntime.
	Runtime string
	// StateDir holds pipes while sandboxes run, and the compiled filter. Every
	// user must be able to pass through it.
	StateDir string
	// DeviceDir, on a tmpfs, holds empty files that device files are bound to.
	// Empty means DefaultDeviceDir.
	DeviceDir string
	// Stage is a statically linked program that has package stage linked in.
	// Empty means this program.
	Stage string
	// UIDBase is the first of 65,536 ids that belong to nobody. Zero means
	// DefaultUIDBase.
	UIDBase uint32
}

// Defaults of Options.
const (
	DefaultAddress   = "/run/containerd/containerd.sock"
	DefaultNamespace = "aspis"
	DefaultRuntime   = "io.containerd.runc.v2"
	DefaultDeviceDir = "/dev/shm/aspis-devices"
	DefaultUIDBase   = 2_000_000_000
)

// snapshotter is the only one whose snapshots can be prepared without mounting
// them on the machine.
const snapshotter = "overlayfs"

const (
	connectTimeout = 10 * time.Second
	startTimeout   = 60 * time.Second
	closeTimeout   = 20 * time.Second
)

// Runtime starts sandboxes from one image. Its methods may be called at the
// same time.
type Runtime struct {
	opt    Options
	client *client.Client
	image  client.Image
	filter []byte
	owner  string // label value that names this host process
}

var _ sandbox.Runtime = (*Runtime)(nil)

// New connects to the daemon, makes sure that the image is the one with the
// digest and unpacked, and removes what killed hosts have left in the daemon's
// namespace. It needs root. Close ends the connection.
func New(ctx context.Context, opt Options) (_ *Runtime, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("containerd runtime: only root may speak with the daemon and look at its sandboxes")
	}
	if opt, err = opt.complete(); err != nil {
		return nil, fmt.Errorf("containerd runtime: %w", err)
	}
	r := &Runtime{opt: opt}
	if r.owner, err = ownerLabel(); err != nil {
		return nil, err
	}
	if r.filter, _, err = seccomp.Cached(filepath.Join(opt.StateDir, "seccomp"), seccomp.Default()); err != nil {
		return nil, fmt.Errorf("seccomp program: %w", err)
	}
	if err := makeDevices(opt.DeviceDir); err != nil {
		return nil, fmt.Errorf("devices: %w", err)
	}
	if r.client, err = client.New(opt.Address, client.WithDefaultNamespace(opt.Namespace), client.WithTimeout(connectTimeout)); err != nil {
		return nil, fmt.Errorf("connect to containerd at %q: %w", opt.Address, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.client.Close())
		}
	}()
	ctx = namespaces.WithNamespace(ctx, opt.Namespace)
	if err := r.findImage(ctx); err != nil {
		return nil, err
	}
	return r, r.collect(ctx)
}

func (o Options) complete() (Options, error) {
	for _, d := range []struct {
		field *string
		value string
	}{{&o.Address, DefaultAddress}, {&o.Namespace, DefaultNamespace}, {&o.Runtime, DefaultRuntime}, {&o.DeviceDir, DefaultDeviceDir}} {
		if *d.field == "" {
			*d.field = d.value
		}
	}
	if o.UIDBase == 0 {
		o.UIDBase = DefaultUIDBase
	}
	if _, err := digest.Parse(o.Digest); err != nil {
		return o, fmt.Errorf("image %q needs a digest: %w", o.Image, err)
	}
	if o.StateDir == "" {
		return o, errors.New("a state directory is needed")
	}
	if o.Stage == "" {
		self, err := os.Executable()
		if err != nil {
			return o, err
		}
		o.Stage = self
	}
	if err := checkStatic(o.Stage); err != nil {
		return o, err
	}
	return o, os.MkdirAll(o.StateDir, 0o711)
}

// findImage: an image's name can be pointed elsewhere at any time, its digest
// cannot. The snapshot is made from what the digest led to here.
func (r *Runtime) findImage(ctx context.Context) error {
	image, err := r.client.GetImage(ctx, r.opt.Image)
	if err != nil {
		return fmt.Errorf("image %q in containerd's namespace %q: %w", r.opt.Image, r.opt.Namespace, err)
	}
	if got := image.Target().Digest.String(); got != r.opt.Digest {
		return fmt.Errorf("image %q has the digest %s, not %s", r.opt.Image, got, r.opt.Digest)
	}
	if err := image.Unpack(ctx, snapshotter); err != nil {
		return fmt.Errorf("unpack image %q: %w", r.opt.Image, err)
	}
	r.image = image
	return nil
}

// Close ends the connection. Sandboxes must be closed before.
func (r *Runtime) Close() error { return r.client.Close() }

// Name identifies the runtime in evidence.
func (r *Runtime) Name() string { return "containerd " + r.opt.Runtime }

// Start builds a sandbox from the image and holds it at the first stage with
// its evidence taken. Spec.System is refused, because an image brings its own
// system, and so are the holes of Spec.Without.
func (r *Runtime) Start(ctx context.Context, spec sandbox.Spec) (_ sandbox.Process, err error) {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, r.opt.Namespace), startTimeout)
	defer cancel()
	if spec.System || len(spec.Without) > 0 {
		return nil, fmt.Errorf("sandbox %q: a sandbox from an image shows nothing of the machine's system and leaves no wall out", spec.Name)
	}
	header := stage.Header{Path: spec.Path, Args: spec.Args, Filter: r.filter}
	word, err := header.Encode()
	if err != nil {
		return nil, fmt.Errorf("sandbox %q: %w", spec.Name, err)
	}
	p := &process{r: r, id: "aspis-" + strings.ToLower(rand.Text()), spec: spec, done: make(chan struct{})}
	defer func() {
		if err != nil {
			clean, stop := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer stop()
			err = fmt.Errorf("sandbox %q: %w", spec.Name, errors.Join(err, p.Close(clean)))
		}
	}()
	if err := p.create(ctx); err != nil {
		return nil, err
	}
	if err := p.pipes.Handshake(ctx, word); err != nil {
		return nil, fmt.Errorf("program %q: %w", spec.Path, err)
	}
	if err := p.limitPids(ctx); err != nil {
		return nil, err
	}
	return p, p.inspect()
}
