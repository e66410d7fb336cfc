package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/aspis-dev/aspis/sandbox"
)

// setLimits reads NAME=VALUE pairs over limits that there are.
func setLimits(l *sandbox.Limits, pairs []string) error {
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if !ok {
			return fmt.Errorf("--limit %q: give NAME=VALUE; there are memory, tmp, pids, files, cpu and time", p)
		}
		var err error
		switch name {
		case "memory":
			l.MemoryBytes, err = bytesOf(value)
		case "tmp":
			l.TmpBytes, err = bytesOf(value)
		case "pids":
			l.Pids, err = countOf(value)
		case "files":
			l.OpenFiles, err = countOf(value)
		case "cpu":
			l.CPUPercent, err = countOf(strings.TrimSuffix(value, "%"))
		case "time":
			if l.WallClock, err = time.ParseDuration(value); err == nil && l.WallClock <= 0 {
				err = fmt.Errorf("%v is no time to run for", l.WallClock)
			}
		default:
			return fmt.Errorf("--limit %q: there is no such limit; there are memory, tmp, pids, files, cpu and time", name)
		}
		if err != nil {
			return fmt.Errorf("--limit %s: %w", p, err)
		}
	}
	return nil
}

func countOf(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err == nil && (n < 1 || n > 10_000_000) {
		err = fmt.Errorf("use 1 to 10000000")
	}
	return n, err
}

// bytesOf reads a size such as 512M or 2G, in powers of 1024.
func bytesOf(text string) (int64, error) {
	shift := 0
	digits := strings.TrimRight(text, "KMGTkmgt")
	switch strings.ToUpper(strings.TrimPrefix(text, digits)) {
	case "":
	case "K":
		shift = 10
	case "M":
		shift = 20
	case "G":
		shift = 30
	case "T":
		shift = 40
	default:
		return 0, fmt.Errorf("use a number of bytes, or one with K, M, G or T")
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 1 || n > (1<<50)>>shift {
		return 0, fmt.Errorf("use a number of bytes up to a petabyte, or one with K, M, G or T")
	}
	return n << shift, nil
}
