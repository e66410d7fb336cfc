// Command bench measures what a person waits for: the start of a sandbox, beside
// other programs that start one, and a whole `aspis check`. It prints tables and
// writes the same numbers as JSON. It asserts no time: a number that depends on
// the machine is for people to look at, and a budget is printed beside it.
//
// All contenders take turns within one run, in a new order each round, so that
// whatever else the machine does meets all of them alike.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/sandbox/container"
)

type options struct {
	bin    string        // where aspis, aspis-hygiene and bench-byte lie
	rounds int           // of cold starts
	checks int           // of whole checks
	idle   time.Duration // before each measurement
	dir    string        // for everything that is made here; removed at the end
}

// results is the JSON file.
type results struct {
	Machine   machine      `json:"machine"`
	ColdStart *coldStarts  `json:"coldStart,omitzero"`
	Check     *checkResult `json:"check,omitzero"`
	Scale     *scaled      `json:"scale,omitzero"`
	Applies   *applies     `json:"applies,omitzero"`
	Snapshots *snapshots   `json:"snapshots,omitzero"`
}

type machine struct {
	Kernel string    `json:"kernel"`
	Arch   string    `json:"arch"`
	CPUs   int       `json:"cpus"`
	Go     string    `json:"go"`
	User   int       `json:"user"`
	At     time.Time `json:"at"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context) (code int, err error) {
	var opt options
	out, trees := "", ""
	flag.StringVar(&opt.bin, "bin", "bin", "the `directory` with aspis, aspis-hygiene and bench-byte")
	flag.IntVar(&opt.rounds, "rounds", 40, "how often each sandbox is started; 0 leaves this out")
	flag.IntVar(&opt.checks, "checks", 10, "how often a whole check is made; 0 leaves this out")
	flag.DurationVar(&opt.idle, "idle", 60*time.Millisecond, "pause before each measurement: a busy machine hides what some kernel calls cost")
	flag.StringVar(&trees, "trees", "100,10000,100000", "`sizes` of the trees, in files, that a host that stays is measured on; empty leaves this out")
	largest := 0
	flag.IntVar(&largest, "snapshots", 90_000, "`files` of the repository that snapshots are measured on; 0 leaves this out")
	flag.StringVar(&out, "json", "", "write the numbers to this `file` as well")
	flag.Parse()
	if opt.rounds < 0 || opt.rounds > 10_000 || opt.checks < 0 || opt.checks > 1_000 {
		return 0, errors.New("-rounds can be 0 to 10000 and -checks 0 to 1000")
	}
	var sizes []int
	for f := range strings.FieldsFuncSeq(trees, func(r rune) bool { return r == ',' }) {
		n, err := strconv.Atoi(f)
		if err != nil || n < changed || n > 1_000_000 {
			return 0, fmt.Errorf("-trees names %q; give numbers from %d to 1000000", f, changed)
		}
		sizes = append(sizes, n)
	}
	if opt.bin, err = filepath.Abs(opt.bin); err != nil {
		return 0, fmt.Errorf("find -bin: %w", err)
	}
	// An ordinary user's bench runs in a user namespace, as aspis itself does.
	e, err := container.Enter(ctx, nil)
	if err != nil || e.Child {
		return e.Code, err
	}
	if opt.dir, err = os.MkdirTemp("", "aspis-bench-"); err != nil {
		return 0, fmt.Errorf("make a directory to work in: %w", err)
	}
	// Removed once, at the end: a file system is slower for a while after a large removal.
	defer func() { err = errors.Join(err, os.RemoveAll(opt.dir)) }()
	// A sandbox's root has no rights here and must be able to walk in.
	if err := os.Chmod(opt.dir, 0o711); err != nil {
		return 0, fmt.Errorf("open the working directory to sandboxes: %w", err)
	}

	res := results{Machine: thisMachine()}
	fmt.Printf("Linux %s on %s, %d processors, %s\n", res.Machine.Kernel, res.Machine.Arch, res.Machine.CPUs, res.Machine.Go)
	if opt.rounds > 0 {
		if e.WhyNot != "" {
			fmt.Printf("\ncold start: left out, no sandbox can be built here: %s\n", e.WhyNot)
		} else if res.ColdStart, err = coldStart(ctx, opt); err != nil {
			return 0, fmt.Errorf("cold start: %w", err)
		} else {
			res.ColdStart.print(os.Stdout)
		}
	}
	if opt.checks > 0 {
		if res.Check, err = checks(ctx, opt); err != nil {
			return 0, fmt.Errorf("whole check: %w", err)
		}
		res.Check.print(os.Stdout)
	}
	if len(sizes) > 0 && opt.checks > 0 {
		if res.Scale, err = measureScale(ctx, opt, sizes); err != nil {
			return 0, fmt.Errorf("trees of several sizes: %w", err)
		}
		res.Scale.print(os.Stdout)
	}
	if largest >= changed*7 && e.WhyNot == "" {
		if res.Snapshots, err = measureSnapshots(ctx, opt, largest); err != nil {
			return 0, fmt.Errorf("snapshots: %w", err)
		}
		res.Snapshots.print(os.Stdout)
	}
	if opt.checks > 0 {
		if res.Applies, err = measureApplies(ctx, opt); err != nil {
			return 0, fmt.Errorf("publishing: %w", err)
		}
		res.Applies.print(os.Stdout)
	}
	if out == "" {
		return 0, nil
	}
	b, err := json.Marshal(res, jsontext.WithIndent("  "))
	if err != nil {
		return 0, fmt.Errorf("encode the numbers: %w", err)
	}
	if err := os.WriteFile(out, append(b, '\n'), 0o644); err != nil {
		return 0, fmt.Errorf("write the numbers: %w", err)
	}
	fmt.Printf("\nthe numbers are in %s\n", out)
	return 0, nil
}

func thisMachine() machine {
	m := machine{Kernel: "unknown", Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Go: runtime.Version(), User: os.Getuid(), At: time.Now().UTC()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = strings.TrimRight(string(u.Release[:]), "\x00")
	}
	return m
}
