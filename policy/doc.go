// Package policy says what must be checked, by whom it may be, and what may be
// launched. It loads trusted policy and answers questions about it; it starts
// nothing, reads no git and knows no container.
//
// Layers, from strongest to weakest:
//
//   - floor: the organisation's, which nothing can weaken;
//   - trusted configuration: the system's and the user's, or the one file that
//     the caller names; the only layer that can say what to launch and the only
//     one that can grant authority;
//   - repository policy: .asp/asp.json as it is at the baseline. It can require
//     more and narrow who may satisfy it; it grants nothing by itself;
//   - candidate policy: .asp/asp.json as the change would have it. It is
//     compared and reported, and decides nothing about the change that carries it;
//   - local override: .asp/local.json, presentation only.
//
// With no trusted configuration a built-in one requires the provider that comes
// with aspis at every call-site, so that a first run is a real one.
//
// A provider has authority for a requirement at a call-site when trusted
// configuration grants it by id, version and digest, and every layer that
// defines the requirement pins the same build (host-obligations §1, §7).
package policy
