// The first stage, as package stage describes it. It is C because it must run
// before Go's runtime exists: a second start of that runtime would cost a
// sandbox a fifth of its start-up time, and the process that the host reads
// the evidence from would have threads and files of Go's own. Only system
// calls on the three pipes, and nothing that buffers: the bytes after the go
// byte belong to the real program.
//
// Its input comes from the host, which is trusted; the bounds are checked all
// the same, so that a mistake ends here.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "first_stage.h"

#ifndef SYS_close_range
#define SYS_close_range 436
#endif

// Exit codes of a first stage that did not become the program.
enum { gone = 125, not_executable = 126 };

struct header {
	uint32_t flags;
	uint32_t filter_size; // bytes
	uint32_t argc;
	uint32_t strings_size; // bytes: path and arguments, each with its zero
};

static void write_all(int fd, const char *s)
{
	size_t n = strlen(s);
	while (n > 0) {
		ssize_t w = write(fd, s, n);
		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0)
			_exit(gone);
		s += w;
		n -= w;
	}
}

static void read_full(void *buf, size_t n)
{
	char *p = buf;
	while (n > 0) {
		ssize_t r = read(STDIN_FILENO, p, n);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0) // the host has gone away or let go
			_exit(gone);
		p += r;
		n -= r;
	}
}

static void refuse(const char *doing, const char *why)
{
	write_all(STDOUT_FILENO, STAGE_REFUSED "first stage cannot ");
	write_all(STDOUT_FILENO, doing);
	write_all(STDOUT_FILENO, ": ");
	write_all(STDOUT_FILENO, why);
	_exit(gone);
}

static void check(long result, const char *doing)
{
	if (result < 0)
		refuse(doing, strerror(errno));
}

// load_filter needs no_new_privs, which the container's configuration has set.
static void load_filter(void *filter, uint32_t size)
{
	struct sock_fprog prog = {
		.len = size / sizeof(struct sock_filter),
		.filter = filter,
	};
	if (size % sizeof(struct sock_filter) != 0 || size / sizeof(struct sock_filter) > BPF_MAXINSNS)
		refuse("load the seccomp filter", "bad size");
	check(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog), "load the seccomp filter");
}

// be_init makes this process the init of its pid namespace: it returns in a
// child, which becomes the program, and itself reaps orphans, passes signals on
// and ends as the child does. Without one a program would be the init, whom the
// kernel spares every signal that it has no handler for (pid_namespaces(7)).
static void be_init(void)
{
	sigset_t all, before;
	sigfillset(&all);
	sigprocmask(SIG_BLOCK, &all, &before);
	pid_t child = fork();
	if (child < 0) {
		dprintf(STDERR_FILENO, "aspis: cannot start the program: %s\n", strerror(errno));
		_exit(gone);
	}
	if (child == 0) {
		sigprocmask(SIG_SETMASK, &before, NULL);
		return;
	}
	// The streams are the program's: they end with it and its children.
	close(STDIN_FILENO);
	close(STDOUT_FILENO);
	close(STDERR_FILENO);
	for (;;) {
		// A blocked signal is kept for an init as for anybody.
		int sig = sigwaitinfo(&all, NULL);
		if (sig > 0 && sig != SIGCHLD)
			kill(child, sig);
		int status;
		pid_t ended;
		while ((ended = waitpid(-1, &status, WNOHANG)) > 0) {
			if (ended == child)
				_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
		}
	}
}

static void first_stage(void)
{
	// The host's thread that started the container is our parent in the
	// kernel's eyes; libcontainer's own setting was lost in its clones. A host
	// that died before this line has closed our standard input, which the
	// first read sees.
	check(prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0), "ask to die with the host");

	uint32_t size;
	read_full(&size, sizeof(size));
	if (size < sizeof(struct header) || size > STAGE_MAX_HEADER)
		refuse("read its header", "bad size");
	char *body = malloc(size);
	if (body == NULL)
		refuse("read its header", "no memory");
	read_full(body, size);

	struct header h;
	memcpy(&h, body, sizeof(h));
	if (h.argc < 1 || h.argc > STAGE_MAX_ARGS || h.filter_size > size ||
	    (uint64_t)sizeof(h) + h.filter_size + h.strings_size != size ||
	    h.strings_size < 1 || body[size - 1] != 0)
		refuse("read its header", "bad layout");
	char *filter = body + sizeof(h);
	char *next = filter + h.filter_size;
	char *path = next;
	char **argv = calloc(h.argc + 1, sizeof(char *));
	if (argv == NULL)
		refuse("read its header", "no memory");
	for (uint32_t i = 0; i < h.argc; i++) {
		next += strlen(next) + 1;
		if (next >= body + size)
			refuse("read its header", "too few arguments");
		argv[i] = next;
	}

	if (!(h.flags & STAGE_KEEP_FILES))
		check(syscall(SYS_close_range, 3, UINT_MAX, 0), "close inherited files");
	if (h.flags & STAGE_REAP)
		check(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "keep its orphans");
	// Asked before the host looks, so that a missing program is an error of
	// the start and not of the run.
	check(access(path, X_OK), "execute the program");
	if (h.filter_size > 0)
		load_filter(filter, h.filter_size);
	write_all(STDOUT_FILENO, STAGE_READY);

	char word;
	read_full(&word, 1);
	if (word != STAGE_GO)
		_exit(gone);
	if (h.flags & STAGE_INIT)
		be_init();
	execve(path, argv, environ);
	dprintf(STDERR_FILENO, "aspis: cannot execute the program: %s\n", strerror(errno));
	_exit(not_executable);
}

// A constructor is not given the arguments by every C library, so the kernel
// is asked for them.
__attribute__((constructor)) static void maybe_first_stage(void)
{
	char line[PATH_MAX + sizeof(STAGE_MARKER)];
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	ssize_t n = read(fd, line, sizeof(line));
	close(fd);
	const ssize_t marker = sizeof(STAGE_MARKER); // its zero included
	if (n <= marker || line[n - 1 - marker] != 0 || memcmp(line + n - marker, STAGE_MARKER, marker) != 0)
		return;
	// The marker is the last argument. It must be the only one, but for those
	// of a loader that a dynamically linked build is started by.
	if (strcmp(line, STAGE_LOADER) != 0 && memchr(line, 0, n - marker) != line + n - 1 - marker)
		return;
	first_stage();
}
