package policy

import "github.com/aspis-dev/aspis/schemas"

// FailsOpen is the table of host-obligations §2: whether a lost requirement
// lets a change pass, visibly, at a call-site. A gate never fails open. At the
// other call-sites only a provider's ill health does: a breach of contract, a
// missing grant and bad input are for somebody to repair, not to wait out.
//
//	failClass   interactive   sweep    gate
//	health      open          open     closed
//	contract    closed        closed   closed
//	policy      closed        closed   closed
//	input       closed        closed   closed
func FailsOpen(class schemas.FailClass, site schemas.CallSite) bool {
	return class == schemas.FailHealth && (site == schemas.Interactive || site == schemas.Sweep)
}
