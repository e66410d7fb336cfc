// Package publish writes a change into an ordinary directory tree, all of it or
// nothing, while other programs may write there too and the machine may stop at
// any moment. It knows files and their contents; it knows nothing of plans,
// checks, providers or policy, and starts no program but git.
//
// # The protocol
//
//	            look at every path ─── not as expected ──────────────┐
//	                   │                                             │
//	       stage new files, write the journal ─── no room ───────────┤
//	                   │                                             │
//	             make both durable                                   │
//	                   │                                             ▼
//	   ┌── per path: exchange, look at what came out ── differs ─> take back, refuse
//	   │               │                                             ▲
//	   │   look at all that came out once more ──── differs ─────────┘
//	   │               │
//	   │       make the names durable
//	   │               │
//	   │   commit: one record in the journal, durable
//	   │               │
//	   │       remove emptied directories, keep what came out
//	   ▼
//	crash: the next Open reads the journal. Without the commit record it takes
//	every exchange back, with it it finishes. A journal that is torn was not
//	durable yet, so nothing had been exchanged.
//
// Nothing is ever overwritten: what lay at a path comes out into an area of
// ours and stays there until the next publish has been committed. Where the file
// system allows it, a lease tells whether some program still has what came out
// open for writing, and then the publish is taken back too.
//
// Between the first exchange and the last, other programs see some paths as they
// were and some as they will be: no file system offers more. What is promised is
// the state after Publish has returned or, after a crash, after Open has. A
// program that in that time reads a path, and later saves what it made of that,
// works on content that may have been taken back; what others save is never lost,
// and what they saved last is what lies at the path.
package publish
