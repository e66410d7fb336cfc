package hygiene

import (
	"bytes"
	"encoding/binary"
)

// program names the format of a compiled program, or returns "".
func program(b []byte) string {
	switch {
	case len(b) < 20:
		return ""
	case bytes.HasPrefix(b, []byte("\x7fELF")):
		return "ELF"
	case bytes.HasPrefix(b, []byte("MZ")) && len(b) >= 0x40:
		at := int64(binary.LittleEndian.Uint32(b[0x3c:]))
		if at+4 <= int64(len(b)) && bytes.HasPrefix(b[at:], []byte("PE\x00\x00")) {
			return "PE"
		}
	case bytes.HasPrefix(b, []byte("\xfe\xed\xfa\xce")), bytes.HasPrefix(b, []byte("\xfe\xed\xfa\xcf")),
		bytes.HasPrefix(b, []byte("\xce\xfa\xed\xfe")), bytes.HasPrefix(b, []byte("\xcf\xfa\xed\xfe")):
		return "Mach-O"
	case bytes.HasPrefix(b, []byte("\xca\xfe\xba\xbe")):
		// Java classes begin the same; theirs goes on with a version above 40,
		// a universal binary's with its few architectures.
		if n := binary.BigEndian.Uint32(b[4:]); n > 0 && n < 20 {
			return "Mach-O"
		}
	}
	return ""
}
