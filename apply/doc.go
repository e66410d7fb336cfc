// Package apply judges edit plans: whether their paths may be written at all,
// whether their preconditions hold on a baseline, and what their text edits make
// of a file. It writes nothing and knows nothing of providers, processes or
// policy files.
package apply
