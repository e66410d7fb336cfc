// What the first stage and the host that feeds it agree on; package stage
// takes its constants from here.

#define STAGE_MARKER "aspis:first-stage"
#define STAGE_LOADER "/.aspis/loader"

// Frames of equal length, on standard output: STAGE_READY when it only waits
// for STAGE_GO, STAGE_REFUSED followed by a sentence and the end of the stream
// when it cannot go on.
#define STAGE_READY "aspis-stage:ready\n"
#define STAGE_REFUSED "aspis-stage:error\n"
#define STAGE_GO 'g'

// Bounds of the header, which holds argv and a BPF program of the kernel's
// largest size several times over.
#define STAGE_MAX_HEADER (1 << 20)
#define STAGE_MAX_ARGS 4096

// Flags.
#define STAGE_KEEP_FILES 1
#define STAGE_REAP 2
#define STAGE_INIT 4
