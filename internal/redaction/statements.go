package redaction

// Statements are all SQL statements of this package that run with parameters, for the test that prepares each.
func Statements() []string {
	return []string{rejectionsSQL, redactSQL, endSQL, doneSQL, besideSQL, openSQL, goneSQL, newerSQL, objectsSQL, siblingsSQL, ofObjectSQL, atDoorSQL, previewSQL, pendingSQL, heldSQL, providerOfSQL, askedSQL, answeredToSQL, answeredUpToSQL, auditSQL}
}
