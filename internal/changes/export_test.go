package changes

// ReadPage reads a page.
var ReadPage = readPage
