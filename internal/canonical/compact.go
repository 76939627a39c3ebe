package canonical

// AppendCompact appends a valid JSON text without the space between its tokens, and otherwise as it is.
func AppendCompact(dst, text []byte) []byte {
	from := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '"':
			i = closingQuote(text, i)
		case ' ', '\n', '\t', '\r':
			dst = append(dst, text[from:i]...)
			from = i + 1
		}
	}
	return append(dst, text[from:]...)
}

// closingQuote is where the string ends that begins at i; the length of the text where it does not.
func closingQuote(text []byte, i int) int {
	for i++; i < len(text); i++ {
		if i = skipPlain(text, i); i == len(text) {
			break
		}
		switch text[i] {
		case '"':
			return i
		case '\\':
			i++
		}
	}
	return len(text)
}
