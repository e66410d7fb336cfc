package schemas

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// hostOwned are the names that a provider may never send, at any depth
// (asp-wire, check/evaluate); editOwned are refused in edit output besides.
var (
	hostOwned = names("authority", "assurance", "decision", "disposition", "pass", "transactionGuarantee", "verdict",
		"applyReceipt", "receipt", "policyDigest", "policyRef", "policyReference", "authorityEvidence", "hostDecision",
		"applyAttempt", "applyResult")
	editOwned = names("command", "commands", "script", "scripts", "shell", "argv", "exec", "execute", "patch", "patches")
)

func names(list ...string) map[string]bool {
	m := make(map[string]bool, len(list))
	for _, n := range list {
		m[n] = true
	}
	return m
}

// ForbiddenField looks for a host-owned member name at any depth of a
// provider's output, and with edit also for anything that is to be run. It
// returns a JSON pointer to the first. A text that is not JSON has none; that
// is for Decode to refuse.
func ForbiddenField(raw []byte, edit bool) (pointer string, found bool) {
	d := jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true))
	for {
		tok, err := d.ReadToken()
		if err != nil {
			return "", false
		}
		if tok.Kind() != '"' {
			continue
		}
		// A string is a member name when it is the odd one of its object.
		kind, n := d.StackIndex(d.StackDepth())
		if kind != '{' || n%2 == 0 {
			continue
		}
		name := tok.String()
		if hostOwned[name] || (edit && editOwned[name]) {
			return string(d.StackPointer()), true
		}
	}
}
