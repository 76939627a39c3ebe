package canonical

// AppendCompact appends a valid JSON text without the white space between tokens, otherwise
// unchanged.
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

// closingQuote returns the end of the string that begins at i, or the length of the text if it has
// none.
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
