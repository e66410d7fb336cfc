package container

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/aspis-dev/aspis/sandbox"
	"github.com/aspis-dev/aspis/sandbox/egress"
)

// helperEnv makes the test program a host of its own, so that hosts can be
// killed and be somebody else. Its value says what to do.
const helperEnv = "ASPIS_TEST_HELPER"

// relayEnv names the destinations that the helper's sandbox may reach.
const relayEnv = "ASPIS_TEST_RELAY"

// warmEnv names a directory that is shown in a sandbox made ahead.
const warmEnv = "ASPIS_TEST_WARM"

// stateEnv is the helper's state directory, and artifactEnv the probe's.
const (
	stateEnv    = "ASPIS_TEST_STATE"
	artifactEnv = "ASPIS_TEST_ARTIFACT"
)

func helperMain() {
	artifact = os.Getenv(artifactEnv)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := helper(ctx, os.Getenv(helperEnv)); err != nil {
		fmt.Println("helper:", err)
		os.Exit(1)
	}
}

func helper(ctx context.Context, what string) error {
	if after, ok := strings.CutPrefix(what, "enter "); ok {
		e, err := Enter(ctx, []byte("handed over"))
		if err != nil {
			return err
		}
		if e.Child {
			fmt.Printf("parent: ids=%s why=%q\n", e.Ids, e.WhySingle)
			os.Exit(e.Code)
		}
		if e.WhyNot != "" {
			fmt.Printf("not: %s\n", e.WhyNot)
			return nil
		}
		note, inner := Inner()
		fmt.Printf("child: %+v args=%q inner=%v note=%q\n", e.Identity, os.Args[1:], inner, note)
		what = after
	}
	space, err := NewSpace("")
	if err != nil {
		return err
	}
	rt, err := New(Options{StateDir: os.Getenv(stateEnv), Space: space})
	if err != nil {
		return err
	}
	spec := probeSpec(strings.Fields(what)...)
	if rules := os.Getenv(relayEnv); rules != "" {
		list, err := egress.ParseList(strings.Fields(rules)...)
		if err != nil {
			return err
		}
		out, err := egress.New(list, egress.Options{})
		if err != nil {
			return err
		}
		spec.Relay, spec.Env = out, append(spec.Env, egress.Environment(sandbox.RelayPort, "")...)
	}
	if dir := os.Getenv(warmEnv); dir != "" {
		spec.Exchangeable = true
		spec.Mounts = []sandbox.Mount{{Source: dir, Target: "/workspace/candidate"}}
		spec.Protect = []string{"/root"}
		if err := rt.Warm(ctx, spec, 1, time.Hour); err != nil {
			return err
		}
		defer rt.Close()
		took := rt.takeWarm(ctx, &spec)
		if took == nil {
			return errors.New("none is taken")
		}
		first, _ := took.Evidence().Mode()
		ev, err := took.Exchange(ctx, []sandbox.Mount{{Source: artifact, Target: "/workspace/candidate"}})
		if err != nil {
			return err
		}
		mode, missing := ev.Mode()
		fmt.Println("warm", first, mode, missing)
		return took.Close(ctx)
	}
	if what == "ahead" { // killed while one waits that nobody has taken
		if err := rt.Warm(ctx, spec, 1, time.Hour); err != nil {
			return err
		}
		for _, p := range rt.warm.pools {
			fmt.Println("provider", p.waiting[0].pid)
		}
		fmt.Println("mode held")
		time.Sleep(time.Hour)
	}
	p, err := rt.Start(ctx, spec)
	if err != nil {
		return err
	}
	fmt.Println("provider", p.Pid())
	mode, missing := p.Evidence().Mode()
	for _, w := range missing {
		fmt.Printf("missing %s: %s\n", w.Name, w.Seen)
	}
	fmt.Println("mode", mode)
	if what == "held" { // killed while the first stage waits
		time.Sleep(time.Hour)
	}
	if err := p.Release(ctx); err != nil {
		return err
	}
	if _, err := io.Copy(os.Stdout, p.Stdout()); err != nil {
		return err
	}
	if err := p.Close(ctx); err != nil {
		return err
	}
	os.Exit(9)
	return nil
}
