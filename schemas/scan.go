package schemas

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
)

// scan bounds depth and number of values before anything is built from them.
// It reads no more of the grammar than that takes, so that it runs at the speed
// of memory; what is not JSON at all is found by the decoder that comes after.
func scan(data []byte, lim Limits) error {
	depth, values := 0, 1
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = endOfString(data, i+1)
			continue
		case '{', '[':
			if depth++; depth > lim.MaxDepth {
				return &DecodeError{Detail: fmt.Sprintf("nested deeper than %d levels", lim.MaxDepth), Offset: int64(i)}
			}
			values++
		case '}', ']':
			depth--
		case ',', ':':
			values++
		default:
			continue
		}
		if values > lim.MaxElements {
			return &DecodeError{Detail: fmt.Sprintf("more than %d values", lim.MaxElements), Offset: int64(i)}
		}
	}
	return nil
}

// endOfString gives the index of the quote that ends a string whose content
// begins at i, or len(data) when none does.
func endOfString(data []byte, i int) int {
	for i < len(data) {
		n := bytes.IndexByte(data[i:], '"')
		if n < 0 {
			return len(data)
		}
		end := i + n
		// An odd number of backslashes before a quote makes it content.
		k := end
		for k > i && data[k-1] == '\\' {
			k--
		}
		if (end-k)%2 == 0 {
			return end
		}
		i = end + 1
	}
	return len(data)
}

// AppendString appends text, which must be valid UTF-8, to dst as a JSON string
// with the escapes that RFC 8259 demands and no others.
func AppendString(dst, text []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for len(text) > 0 {
		n := plainPrefix(text)
		dst = append(dst, text[:n]...)
		text = text[n:]
		if len(text) == 0 {
			break
		}
		switch c := text[0]; c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		text = text[1:]
	}
	return append(dst, '"')
}

// plainPrefix counts the bytes before the first that must be escaped, eight at
// a time.
func plainPrefix(b []byte) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; len(b)-n >= 8; n += 8 {
		w := binary.LittleEndian.Uint64(b[n:])
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		// A byte's high bit is set where it is under 0x20, a quote or a backslash.
		// A borrow can only mark bytes above one that is marked rightly.
		if hit := ((w-ones*0x20)&^w | (quote-ones)&^quote | (slash-ones)&^slash) & highs; hit != 0 {
			return n + bits.TrailingZeros64(hit)/8
		}
	}
	for ; n < len(b); n++ {
		if c := b[n]; c < 0x20 || c == '"' || c == '\\' {
			return n
		}
	}
	return n
}
