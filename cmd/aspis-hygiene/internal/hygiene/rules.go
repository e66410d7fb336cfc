// Package hygiene finds what no change should bring in: secrets, conflict
// markers, characters that hide what code does, names and links that do harm on
// other machines, files that are broken or too large. It works on bytes and
// paths that are given to it, and does no I/O but a look at the modes of files
// in a snapshot that the host has mounted.
package hygiene

import "github.com/aspis-dev/aspis/schemas"

// Source is the diagnostic source of every rule.
const Source = "hygiene"

// The rules.
const (
	ruleSecret     = "secret"
	ruleConflict   = "conflict-marker"
	ruleBidi       = "bidi-control"
	ruleInvisible  = "invisible-character"
	ruleCase       = "case-collision"
	ruleSymlink    = "symlink-escape"
	ruleExecutable = "new-executable"
	ruleLarge      = "large-file"
	ruleJSON       = "invalid-json"
	ruleYAML       = "invalid-yaml"
	ruleTOML       = "invalid-toml"
)

type rule struct {
	severity schemas.Severity
	help     string
	// needsModes is true for rules that a list of changed blobs cannot serve.
	needsModes bool
}

var rules = map[string]rule{
	ruleSecret:     {severity: schemas.SeverityError, help: "Take the secret out of the change, and revoke it: what was committed once must be taken for known. Keep it in a secret store or in the environment, and refer to it by name."},
	ruleConflict:   {severity: schemas.SeverityError, help: "Finish the merge: choose what stays and remove the marker lines."},
	ruleBidi:       {severity: schemas.SeverityError, help: "Remove the bidirectional control characters: they make code look other than it runs (CVE-2021-42574). Write text that needs them with escapes."},
	ruleInvisible:  {severity: schemas.SeverityWarning, help: "Remove the characters that cannot be seen, or write them with escapes."},
	ruleCase:       {severity: schemas.SeverityWarning, help: "Rename one of the files: on macOS and Windows they are one and the same, and a checkout loses one of them."},
	ruleSymlink:    {severity: schemas.SeverityError, help: "Point the link at something inside the repository by a relative path: elsewhere it leads to whatever lies on the reader's machine.", needsModes: true},
	ruleExecutable: {severity: schemas.SeverityWarning, help: "Drop the executable bit (git update-index --chmod=-x) unless the file is meant to be run.", needsModes: true},
	ruleLarge:      {severity: schemas.SeverityWarning, help: "Keep large files out of git: use Git LFS or a store for artifacts. History keeps every version for ever."},
	ruleJSON:       {severity: schemas.SeverityWarning, help: "Correct the syntax; a program that reads this file will refuse it."},
	ruleYAML:       {severity: schemas.SeverityWarning, help: "Correct the syntax; a program that reads this file will refuse it."},
	ruleTOML:       {severity: schemas.SeverityWarning, help: "Correct the syntax; a program that reads this file will refuse it."},
}

// hit is one finding in one file. Key is what makes it the same finding when
// lines move or the file is renamed.
type hit struct {
	rule    string
	path    string
	line    int // from 0; -1 for the whole file
	start   int // UTF-16 units
	end     int
	message string
	key     string
}
