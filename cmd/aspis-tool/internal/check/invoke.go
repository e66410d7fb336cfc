package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/aspis-dev/aspis/cmd/aspis-tool/internal/child"
	"github.com/aspis-dev/aspis/cmd/aspis-tool/internal/report"
	"github.com/aspis-dev/aspis/cmd/internal/toolspec"
	"github.com/aspis-dev/aspis/schemas"
)

// Bounds of one run of a tool.
const (
	maxOutput  = 32 << 20 // bytes
	maxSaid    = 256 << 10
	maxArgs    = 64 << 10 // bytes of file names in one run
	versionFor = 20 * time.Second
)

// invocation is a tool on one view.
type invocation struct {
	tool    *toolspec.Tool
	program string
	own     string
	scratch string // a directory of this check's own
	side    *side
	until   time.Time
	// gaps is told why what was found is not all.
	gaps func(format string, args ...any)
}

// found is one finding with the file that the tool was run for, where that was
// one.
type found struct {
	report.Finding
	columns string
	only    string
}

// program gives the absolute path of the tool.
func (p *Provider) program(tool *toolspec.Tool) string {
	if filepath.IsAbs(tool.Program) {
		return tool.Program
	}
	return filepath.Join(p.at.Own, tool.Program)
}

// verify begins to make sure, once, that the program is the one that was meant.
// What it says counts for every run of the tool; it takes as long as reading the
// program does, so that a run need not wait for it to be kept or thrown away.
func (p *Provider) verify(ctx context.Context, tool *toolspec.Tool, env []string) (wait func() error, err error) {
	program := p.program(tool)
	if _, err := os.Stat(program); err != nil {
		return nil, &failure{schemas.ReasonMissing, fmt.Sprintf("the tool %s is not installed: %q cannot be used (%v)", tool.Name, program, errors.Unwrap(err))}
	}
	if err := p.sameVersion(ctx, tool, program, env); err != nil {
		return nil, err
	}
	if tool.Digest == "" {
		return func() error { return nil }, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	key := program + "\x00" + tool.Digest
	same := p.verified[key]
	if same == nil {
		same = sync.OnceValue(func() error { return sameDigest(tool.Name, program, tool.Digest) })
		p.verified[key] = same
		go func() { _ = same() }() // it is asked again for what it says
	}
	return same, nil
}

func sameDigest(name, program, want string) error {
	got, err := digestOf(program)
	if err != nil {
		return &failure{schemas.ReasonUnavailable, fmt.Sprintf("the tool %s cannot be read: %v", name, err)}
	}
	if got != want {
		return &failure{schemas.ReasonIncompatible, fmt.Sprintf("the tool %s is another than was pinned: %s has the digest %s, and the description says %s", name, program, got, want)}
	}
	return nil
}

// sameVersion asks the tool, where the description wants that.
func (p *Provider) sameVersion(ctx context.Context, tool *toolspec.Tool, program string, env []string) error {
	if tool.Version == nil || p.told[program] == tool.Version.Contains {
		return nil
	}
	r := child.Run(ctx, child.Command{Path: program, Args: tool.Version.Args, Dir: "/", Env: env, Timeout: versionFor, Stdout: maxSaid, Stderr: maxSaid})
	if r.Failure != "" {
		return &failure{schemas.ReasonUnavailable, fmt.Sprintf("the tool %s does not tell its version: %s", tool.Name, r.Failure)}
	}
	said := string(r.Stdout) + "\n" + string(r.Stderr)
	if !strings.Contains(said, tool.Version.Contains) {
		return &failure{schemas.ReasonSkewed, fmt.Sprintf("the tool %s has the wrong version: it says %q, and the description wants %q", tool.Name, report.Text(said, 120), tool.Version.Contains)}
	}
	p.told[program] = tool.Version.Contains
	return nil
}

// environment is all that the tool gets of one: homes and caches in scratch
// space, nothing that colours or translates, and what the description adds.
func environment(tool *toolspec.Tool, own, scratch, root string) []string {
	vars := map[string]string{
		"HOME": filepath.Join(scratch, "home"), "TMPDIR": filepath.Join(scratch, "tmp"),
		"XDG_CACHE_HOME": filepath.Join(scratch, "cache"), "XDG_CONFIG_HOME": filepath.Join(scratch, "home/.config"),
		"XDG_DATA_HOME": filepath.Join(scratch, "home/.local/share"),
		"PATH":          own + ":/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
		"LANG":          "C.UTF-8", "LC_ALL": "C.UTF-8", "NO_COLOR": "1", "TERM": "dumb", "CI": "true",
	}
	for name, value := range tool.Environment {
		vars[name] = place(value, own, scratch, root)
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		out = append(out, name+"="+vars[name])
	}
	return out
}

func place(s, own, scratch, root string) string {
	return strings.NewReplacer(toolspec.Root, root, "{scratch}", scratch, "{provider}", own, toolspec.Output, filepath.Join(scratch, "output")).Replace(s)
}

// all runs the tool for the files, as often as its description wants and the
// length of a command line allows. For a tool that looks at the whole view files
// only says what it is about.
func (in *invocation) all(ctx context.Context, files []string) ([]found, error) {
	var out []found
	batches := [][]string{files}
	switch in.tool.Scope {
	case "each":
		batches = slices.Collect(slices.Chunk(files, 1))
	case "changed":
		batches = batch(files)
	}
	for _, b := range batches {
		more, err := in.once(ctx, b)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	return out, nil
}

func batch(files []string) [][]string {
	var out [][]string
	size := maxArgs
	for _, f := range files {
		if size+len(f) > maxArgs {
			out, size = append(out, nil), 0
		}
		out[len(out)-1] = append(out[len(out)-1], f)
		size += len(f) + 3
	}
	return out
}

// once runs the tool and reads what it says.
func (in *invocation) once(ctx context.Context, files []string) ([]found, error) {
	left := time.Until(in.until)
	if left <= 0 {
		return nil, in.fails(schemas.ReasonTimedOut, "it was not done within its time")
	}
	output := filepath.Join(in.scratch, "output")
	if err := os.Remove(output); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var args []string
	for _, a := range in.tool.Args {
		if a == toolspec.Files {
			for _, f := range files {
				args = append(args, "./"+f) // no name is taken for an option
			}
			continue
		}
		args = append(args, place(a, in.own, in.scratch, in.side.dir))
	}
	r := child.Run(ctx, child.Command{Path: in.program, Args: args, Dir: in.side.dir, Env: environment(in.tool, in.own, in.scratch, in.side.dir),
		Timeout: left, Stdout: maxOutput, Stderr: maxSaid})
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if r.Failure != "" {
		reason := schemas.ReasonCrashed
		switch {
		case r.Missing:
			reason = schemas.ReasonMissing
		case r.TimedOut:
			reason = schemas.ReasonTimedOut
		case r.Truncated:
			reason = schemas.ReasonMalformed
		}
		return nil, in.fails(reason, r.Failure+in.said(r))
	}
	clean, findings := slices.Contains(in.tool.Exit.Clean, r.Code), slices.Contains(in.tool.Exit.Findings, r.Code)
	if !clean && !findings {
		return nil, in.fails(schemas.ReasonError, fmt.Sprintf("it ended with exit code %d, which means neither clean nor findings%s", r.Code, in.said(r)))
	}
	if in.tool.Output.Format == "status" {
		return in.status(r, findings, files), nil
	}
	return in.understand(r, clean, files)
}

func (in *invocation) fails(reason schemas.DegradationReason, what string) error {
	return &failure{reason, "the tool " + in.tool.Name + " failed: " + what}
}

// said repeats the end of what a tool said of its failure.
func (in *invocation) said(r child.Result) string {
	words := lastLines(r.Stderr)
	if words == "" {
		words = lastLines(r.Stdout)
	}
	if words == "" {
		return ""
	}
	return fmt.Sprintf(" (it says %q)", words)
}

func lastLines(b []byte) string {
	return report.Text(string(b[max(0, len(b)-600):]), 300)
}

// status makes a finding of an exit code.
func (in *invocation) status(r child.Result, findings bool, files []string) []found {
	if !findings || len(files) == 0 {
		return nil
	}
	m := in.tool.Output.Message
	if m == "" {
		m = fmt.Sprintf("%s does not accept this (exit code %d)%s", in.tool.Name, r.Code, in.said(r))
	}
	f := found{Finding: report.Finding{Rule: report.NoRule, Message: m, Path: files[0], Line: -1, EndLine: -1, Column: -1, EndColumn: -1, Offset: -1, EndOffset: -1}}
	return []found{f}
}

// understand reads the output of a run that ended well.
func (in *invocation) understand(r child.Result, clean bool, files []string) ([]found, error) {
	o := in.tool.Output
	if o.Failed != "" {
		re, err := regexp.Compile(o.Failed)
		if err != nil {
			return nil, err
		}
		for _, b := range [][]byte{r.Stderr, r.Stdout} {
			if at := re.FindIndex(b); at != nil {
				in.gaps("the tool %s did not look at everything: %s", in.tool.Name, report.Text(string(b[at[0]:min(len(b), at[0]+300)]), 200))
				break
			}
		}
	}
	out, err := in.output(r)
	if err != nil {
		return nil, err
	}
	rep, err := report.Read(o, out)
	if err != nil {
		return nil, in.fails(schemas.ReasonMalformed, err.Error()+in.said(r))
	}
	for _, g := range rep.Gaps {
		in.gaps("%s: %s", in.tool.Name, g)
	}
	if !clean && len(rep.Findings) == 0 && len(rep.Gaps) == 0 {
		return nil, in.fails(schemas.ReasonMalformed, fmt.Sprintf("its exit code %d means findings, and its output has none%s", r.Code, in.said(r)))
	}
	only := ""
	if len(files) == 1 && in.tool.Scope != "workspace" {
		only = files[0]
	}
	list := make([]found, len(rep.Findings))
	for i, f := range rep.Findings {
		columns := rep.Columns
		if columns == "" {
			columns = o.Columns
		}
		list[i] = found{f, columns, only}
	}
	return list, nil
}

func (in *invocation) output(r child.Result) ([]byte, error) {
	switch in.tool.Output.From {
	case "stderr":
		if len(r.Stderr) >= maxSaid {
			return nil, in.fails(schemas.ReasonMalformed, fmt.Sprintf("it printed more than %d bytes", maxSaid))
		}
		return r.Stderr, nil
	case "both":
		if len(r.Stderr) >= maxSaid {
			return nil, in.fails(schemas.ReasonMalformed, fmt.Sprintf("it printed more than %d bytes", maxSaid))
		}
		return bytes.Join([][]byte{r.Stdout, r.Stderr}, []byte("\n")), nil
	case "file":
		f, err := os.Open(filepath.Join(in.scratch, "output"))
		if err != nil {
			return nil, in.fails(schemas.ReasonMalformed, "it wrote no output file"+in.said(r))
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, maxOutput+1))
		if err != nil {
			return nil, err
		}
		if len(b) > maxOutput {
			return nil, in.fails(schemas.ReasonMalformed, fmt.Sprintf("it wrote more than %d bytes", maxOutput))
		}
		return b, nil
	}
	return r.Stdout, nil
}
