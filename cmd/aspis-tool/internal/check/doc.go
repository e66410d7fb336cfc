// Package check is the provider that runs an ordinary tool. It is given a
// description of the tool as its configuration, runs it on the views of the
// candidate and of the baseline that the host has mounted, and answers with what
// the change brings in.
//
// It never calls an answer complete unless the tool ended in a way that the
// description foresees, all that it printed was understood, and it was told what
// to look for by nobody but the baseline. It does not know which tool it runs.
package check
