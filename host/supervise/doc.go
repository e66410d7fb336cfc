// Package supervise runs one provider: it starts it behind its walls, speaks
// the inner seam of ASP with it, serves its callbacks inside its grant, holds
// it to its budgets, and turns every way in which it can fail into a typed
// Failure. It validates what a provider answers; it does not decide anything,
// and it knows nothing of policy files, git or the outer seam.
package supervise
