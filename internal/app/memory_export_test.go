package app

// PercentOf is GOGC for so many bytes in use.
var PercentOf = percentOf
