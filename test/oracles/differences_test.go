package oracles_test

import "github.com/postern-gateway/postern/internal/provider"

// stricter tells why an SDK refuses what is accepted here; "" where there is no reason.
func stricter(sdk string, before, after *provider.Delivery) string {
	return ""
}
