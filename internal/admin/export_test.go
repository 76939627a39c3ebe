package admin

// Parameters returns the zero value of the parameters of each route.
func Parameters() (all []any) {
	for _, r := range (&handler{}).routes() {
		all = append(all, r.params)
	}
	return all
}
