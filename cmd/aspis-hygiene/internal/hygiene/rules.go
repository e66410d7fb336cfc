package hygiene

import (
	"maps"
	"slices"

	"github.com/aspis-dev/aspis/schemas"
)

// Source is the diagnostic source of every rule.
const Source = "hygiene"

// The rules; a diagnostic's code is hygiene/<rule>.
const (
	ruleSecret     = "secret"
	rulePrivateKey = "private-key"
	ruleConflict   = "conflict-marker"
	ruleBidi       = "bidi-control"
	ruleInvisible  = "invisible-character"
	ruleCollision  = "case-collision"
	ruleSymlink    = "symlink-escape"
	ruleExecutable = "new-executable"
	ruleProgram    = "binary-program"
	ruleLarge      = "large-file"
	ruleJSON       = "invalid-json"
	ruleYAML       = "invalid-yaml"
	ruleTOML       = "invalid-toml"
)

type rule struct {
	severity schemas.Severity
	// help says what to do, and why: a host shows it as the next step.
	help string
	// needsSnapshot is true for rules that look at modes, which ASP's callbacks
	// do not carry.
	needsSnapshot bool
}

var rules = map[string]rule{
	ruleSecret: {severity: schemas.SeverityError,
		help: "Take it out of the change and revoke it: whoever reads the repository can use it, and what was committed once must be taken for known. Keep it in a secret store or in the environment, and refer to it by name."},
	rulePrivateKey: {severity: schemas.SeverityError,
		help: "Take it out of the change, make a new key and withdraw this one: whoever reads the repository can act as its owner. A test can make a key when it runs."},
	ruleConflict: {severity: schemas.SeverityError,
		help: "Finish the merge: choose what stays and remove the marker lines. The file holds both sides as it is."},
	ruleBidi: {severity: schemas.SeverityError,
		help: "Remove the bidirectional controls, or write them with escapes where a text needs them: they make text look other than it runs (CVE-2021-42574)."},
	ruleInvisible: {severity: schemas.SeverityWarning,
		help: "Remove the characters, or write them with escapes. What cannot be seen is not reviewed: it can make two names look like one, or carry data."},
	ruleCollision: {severity: schemas.SeverityWarning,
		help: "Rename one of the two: on macOS and Windows they are one file, and a checkout loses one of them."},
	ruleSymlink: {severity: schemas.SeverityError, needsSnapshot: true,
		help: "Point the link at something inside the repository by a relative path: as it is, it leads to whatever lies there on the reader's machine."},
	ruleExecutable: {severity: schemas.SeverityWarning, needsSnapshot: true,
		help: "Drop the executable bit (git update-index --chmod=-x) unless the file is meant to be run: it is one more way to run code on a reader's machine."},
	ruleProgram: {severity: schemas.SeverityInfo,
		help: "Build it from source, or fetch it by a digest that is written down: nobody can review a compiled program."},
	ruleLarge: {severity: schemas.SeverityWarning,
		help: "Use Git LFS or a store for artifacts: history keeps every version for ever, in every clone."},
	ruleJSON: {severity: schemas.SeverityWarning,
		help: "Correct the syntax: a program that reads this file will refuse it, or read something else than is meant."},
	ruleYAML: {severity: schemas.SeverityWarning, help: "Correct the syntax: a program that reads this file will refuse it."},
	ruleTOML: {severity: schemas.SeverityWarning, help: "Correct the syntax: a program that reads this file will refuse it."},
}

func ruleNames() []string { return slices.Sorted(maps.Keys(rules)) }
