// Command vm boots Debian kernels in virtual machines with the present build
// inside, one machine for each kind of package matrix, and holds what aspis
// says and does there against what it must. Software emulation is enough, and
// no power is needed: kernels are downloaded and unpacked, not installed.
//
//	vm [-bin DIR] [-work DIR] [-only NAME,NAME] [-markdown FILE] [-json FILE]
//
// It ends with 1 where a machine was not what it must be. It knows qemu and the
// matrix; what a sandbox is, is for the tests inside.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/aspis-dev/aspis/integration/vm/matrix"
)

type options struct {
	bin, work, only, markdown, json, accel, from string
	parallel                                     int
	limit                                        time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "where aspis, aspis-hygiene and aspis-testprovider lie")
	flag.StringVar(&o.work, "work", "bin/vm", "where kernels and images are kept")
	flag.StringVar(&o.only, "only", "", "only these kinds of machine, separated by commas")
	flag.StringVar(&o.markdown, "markdown", "", "write the report into this file's table of machines")
	flag.StringVar(&o.json, "json", "", "write everything that was told into this file")
	flag.StringVar(&o.from, "from", "", "judge what was told into this file by -json before, and boot nothing")
	flag.StringVar(&o.accel, "accel", "tcg,thread=multi", "qemu's accelerator: kvm is faster where it works")
	flag.IntVar(&o.parallel, "parallel", 2, "machines at a time")
	flag.DurationVar(&o.limit, "limit", 5*time.Minute, "time for one machine")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	cells, err := choose(o.only)
	if err != nil {
		return err
	}
	var results []result
	if o.from != "" {
		if results, err = judgeAgain(o.from, cells); err != nil {
			return err
		}
	} else {
		b, err := prepare(ctx, o, cells)
		defer os.Remove(b.disk)
		if err != nil {
			return err
		}
		results = b.bootAll(ctx, cells, o)
	}
	failed := 0
	for _, r := range results {
		if len(r.Wrong) > 0 {
			failed++
		}
	}
	if err := errors.Join(writeJSON(o.json, results), writeMarkdown(o.markdown, results)); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d machines are not what they must be", failed, len(results))
	}
	fmt.Printf("all %d machines are what they must be\n", len(results))
	return nil
}

func choose(only string) ([]matrix.Cell, error) {
	if only == "" {
		return matrix.Table(), nil
	}
	var cells []matrix.Cell
	for name := range strings.SplitSeq(only, ",") {
		c, ok := matrix.Find(name)
		if !ok {
			return nil, fmt.Errorf("there is no kind of machine %q", name)
		}
		cells = append(cells, c)
	}
	return cells, nil
}

// prepare makes all that machines start from.
func prepare(ctx context.Context, o options, cells []matrix.Cell) (bench, error) {
	b := bench{accel: o.accel, boots: map[matrix.Kernel]bootFiles{}}
	work, err := filepath.Abs(o.work)
	if err != nil {
		return b, err
	}
	bin, err := filepath.Abs(o.bin)
	if err != nil {
		return b, err
	}
	root, err := output(ctx, "", "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return b, err
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return b, err
	}
	b.logs, b.disk = work, filepath.Join(work, fmt.Sprintf("disk-%d.img", os.Getpid()))
	if err := disk(ctx, strings.TrimSpace(root), bin, b.disk); err != nil {
		return b, err
	}
	guest := filepath.Join(work, "guest")
	if _, err := output(ctx, strings.TrimSpace(root), "env", "CGO_ENABLED=0", "go", "build", "-trimpath", "-ldflags=-s -w", "-o", guest, "./integration/vm/guest"); err != nil {
		return b, err
	}
	for _, name := range kernels(cells) {
		k, err := fetchKernel(ctx, work, name)
		if err != nil {
			return b, err
		}
		boot := bootFiles{k.image, filepath.Join(work, string(name)+".cpio")}
		if err := memory(ctx, k, guest, boot.memory); err != nil {
			return b, err
		}
		b.boots[name] = boot
	}
	return b, nil
}

// bootAll boots the machines, some at a time, and prints each as it ends.
func (b bench) bootAll(ctx context.Context, cells []matrix.Cell, o options) []result {
	results := make([]result, len(cells))
	turn := make(chan struct{}, max(1, o.parallel))
	var wait sync.WaitGroup
	var print sync.Mutex
	for i, c := range cells {
		turn <- struct{}{}
		wait.Go(func() {
			defer func() { <-turn }()
			began := time.Now()
			report, err := b.boot(ctx, c, o.limit)
			results[i] = judge(c, report, err)
			results[i].Took = time.Since(began).Seconds()
			print.Lock()
			defer print.Unlock()
			results[i].print(os.Stdout)
		})
	}
	wait.Wait()
	return results
}
