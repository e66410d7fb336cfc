package toolspec

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Placeholders of Tool.Args and Tool.Environment. {files} stands alone in an
// argument and becomes one argument a file.
const (
	Files  = "{files}"
	Root   = "{root}"   // the view that is looked at, an absolute path
	Output = "{output}" // a file that the tool is to write, for Output.From "file"
)

// Tool is the description that a provider gets as its configuration.
type Tool struct {
	// Name is used in messages.
	Name string `json:"name"`
	// Program is an absolute path inside the container, or relative to the
	// provider's own directory.
	Program string `json:"program"`
	// Digest pins the program's bytes, as sha256:<hex>. Where the program lies in
	// the provider's artifact directory the provider's own pin covers it.
	Digest string `json:"digest,omitzero"`
	// Version, where given, is asked before the first run; a tool that says
	// something else is not used.
	Version *Version `json:"version,omitzero"`
	Args    []string `json:"args"`
	// Files are globs of what the tool understands; "!" excludes. Empty means all.
	Files []string `json:"files,omitzero"`
	// Interpreters adds files without an extension whose first line names one.
	Interpreters []string `json:"interpreters,omitzero"`
	// Scope is "changed": the tool is given the changed files; "workspace": it
	// looks at the whole view; or "each": it is run once for every changed file.
	Scope    string            `json:"scope"`
	Output   Format            `json:"output"`
	Severity Severity          `json:"severity,omitzero"`
	Help     map[string]string `json:"help,omitzero"` // by rule; "*" for all; {rule} stands for it
	Exit     Exit              `json:"exit"`
	// TimeoutMs bounds one run; the default is DefaultTimeoutMs.
	TimeoutMs int `json:"timeoutMs,omitzero"`
	// Writable gives the tool a copy of the view in memory instead of the view.
	Writable    bool              `json:"writable,omitzero"`
	Environment map[string]string `json:"environment,omitzero"`
	// ConfigFiles are globs of what tells the tool what to look for. A change that
	// touches one would decide about its own check: its answer is not complete.
	ConfigFiles []string `json:"configFiles,omitzero"`
	// TrustChangedConfig takes such an answer as complete all the same.
	TrustChangedConfig bool `json:"trustChangedConfig,omitzero"`
}

// Bounds and defaults, in milliseconds.
const (
	DefaultTimeoutMs = 60_000
	maxTimeoutMs     = 3_600_000
)

// Version says how a tool tells its version and what that must contain.
type Version struct {
	Args     []string `json:"args"`
	Contains string   `json:"contains"`
}

// Format says where a tool's findings are and how they are written.
type Format struct {
	// From is stdout (the default), stderr, both or file.
	From string `json:"from,omitzero"`
	// Format is sarif, errorformat, json, jsonlines, checkstyle or status.
	Format string `json:"format"`
	// Errorformat holds the patterns, or Preset names those of
	// github.com/reviewdog/errorformat.
	Errorformat []string `json:"errorformat,omitzero"`
	Preset      string   `json:"preset,omitzero"`
	// Ignore are regular expressions of lines that say nothing of a finding. Any
	// other line that no pattern matches makes the answer incomplete.
	Ignore []string `json:"ignore,omitzero"`
	// Failed is a regular expression; where the tool's error output, or a line
	// that is no finding, matches, the tool did not look at all that it was to.
	Failed string `json:"failed,omitzero"`
	// Rule finds the rule, and with a group named "message" the rest, in a
	// message.
	Rule string `json:"rule,omitzero"`
	// RulePrefix stands before every rule.
	RulePrefix string `json:"rulePrefix,omitzero"`
	// Items and Fields read json and jsonlines: a pointer to the findings, where
	// "*" stands for every member, and pointers from one of them, where ".." goes
	// back towards the root.
	Items  string `json:"items,omitzero"`
	Fields Fields `json:"fields,omitzero"`
	// Problems is a pointer like Items to what a tool says of its own failures.
	// Where there is one, it did not look at all that it was to.
	Problems string `json:"problems,omitzero"`
	// EmptyIsClean takes no output at all as no finding.
	EmptyIsClean bool `json:"emptyIsClean,omitzero"`
	// Columns says what a tool counts: bytes, runes (the default), utf16; each
	// from ColumnBase, 1 unless given. LineBase likewise.
	Columns    string `json:"columns,omitzero"`
	ColumnBase *int   `json:"columnBase,omitzero"`
	LineBase   *int   `json:"lineBase,omitzero"`
	// Message is the whole message of a finding that comes without one.
	Message string `json:"message,omitzero"`
}

// Fields are relative pointers; an empty one is not read.
type Fields struct {
	Path      string `json:"path,omitzero"`
	Line      string `json:"line,omitzero"`
	Column    string `json:"column,omitzero"`
	EndLine   string `json:"endLine,omitzero"`
	EndColumn string `json:"endColumn,omitzero"`
	Rule      string `json:"rule,omitzero"`
	Message   string `json:"message,omitzero"`
	Severity  string `json:"severity,omitzero"`
	Help      string `json:"help,omitzero"`
	// Only names a member that must be true for the item to be a finding.
	Only string `json:"only,omitzero"`
	// Offset and EndOffset count bytes of the file, from 0.
	Offset    string `json:"offset,omitzero"`
	EndOffset string `json:"endOffset,omitzero"`
}

// Severity maps a tool's words to ASP's: error, warning, info, or "off", which
// leaves a finding out.
type Severity struct {
	Map     map[string]string `json:"map,omitzero"`   // the tool's word, in lower case
	Rules   map[string]string `json:"rules,omitzero"` // by rule; wins
	Default string            `json:"default,omitzero"`
}

// Exit says what exit codes mean. Every other code is a failure.
type Exit struct {
	Clean    []int `json:"clean"`
	Findings []int `json:"findings,omitzero"`
}

// Parse reads a description; an unknown member, a missing one and a value that
// means nothing are errors.
func Parse(raw jsontext.Value) (*Tool, error) {
	var t Tool
	if err := json.Unmarshal(raw, &t, json.RejectUnknownMembers(true)); err != nil {
		return nil, fmt.Errorf("the description of the tool: %w", err)
	}
	if err := t.check(); err != nil {
		return nil, fmt.Errorf("the description of the tool: %w", err)
	}
	return &t, nil
}

func oneOf(what, got string, allowed ...string) error {
	for _, a := range allowed {
		if got == a {
			return nil
		}
	}
	return fmt.Errorf("%s is %.40q; use one of %s", what, got, strings.Join(allowed, ", "))
}

func (t *Tool) check() error {
	switch {
	case t.Name == "":
		return fmt.Errorf("name is empty")
	case t.Program == "":
		return fmt.Errorf("program is empty")
	case len(t.Exit.Clean) == 0:
		return fmt.Errorf("exit.clean is empty; name the code of a run without findings")
	case t.TimeoutMs < 0 || t.TimeoutMs > maxTimeoutMs:
		return fmt.Errorf("timeoutMs is %d; use 1 to %d", t.TimeoutMs, maxTimeoutMs)
	case t.Digest != "" && !strings.HasPrefix(t.Digest, "sha256:"):
		return fmt.Errorf("digest is %.80q; use sha256:<64 hex digits>", t.Digest)
	case t.Version != nil && t.Version.Contains == "":
		return fmt.Errorf("version.contains is empty")
	}
	for _, c := range t.Exit.Findings {
		for _, d := range t.Exit.Clean {
			if c == d && t.Output.Format == "status" {
				return fmt.Errorf("exit code %d means both clean and findings, and there is nothing else to tell them apart", c)
			}
		}
	}
	if err := oneOf("scope", t.Scope, "changed", "workspace", "each"); err != nil {
		return err
	}
	for _, g := range append(append([]string{}, t.Files...), t.ConfigFiles...) {
		if !doublestar.ValidatePattern(strings.TrimPrefix(g, "!")) {
			return fmt.Errorf("%.80q is no glob", g)
		}
	}
	if err := t.Severity.check(); err != nil {
		return err
	}
	return t.checkOutput()
}

func (s Severity) check() error {
	for _, m := range []map[string]string{s.Map, s.Rules, {"default": s.Default}} {
		for word, to := range m {
			if to == "" && word == "default" {
				continue
			}
			if err := oneOf("severity of "+word, to, "error", "warning", "info", "off"); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *Tool) checkOutput() error {
	o := t.Output
	if err := oneOf("output.format", o.Format, "sarif", "errorformat", "json", "jsonlines", "checkstyle", "status"); err != nil {
		return err
	}
	if err := oneOf("output.from", o.From, "", "stdout", "stderr", "both", "file"); err != nil {
		return err
	}
	if err := oneOf("output.columns", o.Columns, "", "bytes", "runes", "utf16"); err != nil {
		return err
	}
	joined := strings.Join(t.Args, " ")
	switch {
	case (o.From == "file") != strings.Contains(joined, Output):
		return fmt.Errorf("output.from is %q, and the arguments hold %s: one without the other", o.From, Output)
	case t.Scope == "workspace" && strings.Contains(joined, Files):
		return fmt.Errorf("the arguments hold %s although the scope is workspace", Files)
	case t.Scope != "workspace" && !strings.Contains(joined, Files):
		return fmt.Errorf("the arguments do not hold %s although the scope is %s", Files, t.Scope)
	case o.Format == "errorformat" && len(o.Errorformat) == 0 && o.Preset == "":
		return fmt.Errorf("output.errorformat is empty")
	case (o.Format == "json" || o.Format == "jsonlines") && o.Fields.Message == "" && o.Message == "":
		return fmt.Errorf("output.fields.message is empty")
	case o.Format == "status" && len(t.Exit.Findings) == 0:
		return fmt.Errorf("exit.findings is empty although nothing but the exit code tells of findings")
	}
	for _, a := range t.Args {
		if strings.Contains(a, Files) && a != Files {
			return fmt.Errorf("the argument %.80q holds more than %s", a, Files)
		}
	}
	for _, re := range append([]string{o.Failed, o.Rule}, o.Ignore...) {
		if _, err := regexp.Compile(re); err != nil {
			return fmt.Errorf("%.80q: %w", re, err)
		}
	}
	return nil
}
