package ingest

// What is written without reflection.
var (
	KeptHeaders        = keptHeaders
	AppendVerification = appendVerification
	AppendReceipt      = appendReceipt
)
