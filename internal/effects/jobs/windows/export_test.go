package windows

// Statements whose plans a test examines.
const (
	CollectSQL, ListedSQL, SummarySQL, DeleteChangesSQL = collectSQL, listedSQL, summarySQL, deleteChangesSQL
)
