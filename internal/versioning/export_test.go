package versioning

import "fmt"

// TableStatements returns the statements that load and save objects of each table, by a name.
func TableStatements() map[string]string {
	all := map[string]string{}
	for t := range loads {
		all[fmt.Sprint("load ", t)], all[fmt.Sprint("save ", t)] = loads[t].SQL, saves[t].SQL
	}
	return all
}

// FindIDWithin is FindID with a maximum number of pairs of account and type.
var FindIDWithin = findID
