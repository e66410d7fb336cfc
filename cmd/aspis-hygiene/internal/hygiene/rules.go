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
	// help says why it matters and what to do.
	help string
	// needsSnapshot is true for rules that look at modes, which ASP's callbacks
	// do not carry.
	needsSnapshot bool
}

var rules = map[string]rule{
	ruleSecret: {severity: schemas.SeverityError,
		help: "Whoever reads the repository, now or ever, can use it. Take it out of the change and revoke it: what was committed once must be taken for known. Keep it in a secret store or in the environment, and refer to it by name."},
	rulePrivateKey: {severity: schemas.SeverityError,
		help: "Whoever reads the repository can act as the key's owner. Take it out of the change, make a new key and withdraw this one. Tests can make a key when they run."},
	ruleConflict: {severity: schemas.SeverityError,
		help: "A merge was committed half done; the file holds both sides. Choose what stays and remove the marker lines."},
	ruleBidi: {severity: schemas.SeverityError,
		help: "Bidirectional controls make text look other than it runs (CVE-2021-42574). Remove them, or write them with escapes where a text needs them."},
	ruleInvisible: {severity: schemas.SeverityWarning,
		help: "What cannot be seen is not reviewed: such characters make two names look like one, or carry data. Remove them, or write them with escapes."},
	ruleCollision: {severity: schemas.SeverityWarning,
		help: "On macOS and Windows both names are one file, and a checkout loses one of them. Rename one."},
	ruleSymlink: {severity: schemas.SeverityError, needsSnapshot: true,
		help: "The link leads to whatever lies there on the reader's machine, and what follows it reads or writes outside the repository. Point it at something inside by a relative path."},
	ruleExecutable: {severity: schemas.SeverityWarning, needsSnapshot: true,
		help: "A file that can be run is one more way to run code on a reader's machine. Drop the bit (git update-index --chmod=-x) unless the file is meant to be run."},
	ruleProgram: {severity: schemas.SeverityInfo,
		help: "Nobody can review a compiled program. Build it from source, or fetch it by a digest that is written down."},
	ruleLarge: {severity: schemas.SeverityWarning,
		help: "History keeps every version for ever, in every clone. Use Git LFS or a store for artifacts."},
	ruleJSON: {severity: schemas.SeverityWarning,
		help: "A program that reads this file will refuse it, or read something else than is meant. Correct the syntax."},
	ruleYAML: {severity: schemas.SeverityWarning,
		help: "A program that reads this file will refuse it. Correct the syntax."},
	ruleTOML: {severity: schemas.SeverityWarning,
		help: "A program that reads this file will refuse it. Correct the syntax."},
}

func ruleNames() []string { return slices.Sorted(maps.Keys(rules)) }
