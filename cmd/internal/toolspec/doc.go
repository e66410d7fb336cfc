// Package toolspec describes an ordinary command line tool as data: how it is
// called, what it prints and what its exit codes mean. It has the descriptions
// that come with aspis, and it checks those that come with trusted
// configuration. It starts nothing, and it knows nothing of ASP.
package toolspec
