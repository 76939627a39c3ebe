package operations

import "github.com/postern-gateway/postern/internal/adminauth"

// Caller describes who calls the API.
type Caller struct {
	// Name is the token's name; "" on loopback without a token.
	Name string         `json:"name"`
	Role adminauth.Role `json:"role"`
	// Via is how the caller was identified: token, console (a session of the console), or loopback,
	// where no token is required.
	Via adminauth.Via `json:"via"`
	// Allowed lists what the caller may do: read (every GET), decide (the POST routes of the role
	// approver), change (every POST) and profile (profiles of the process).
	Allowed []string `json:"allowed"`
	// Process is the id of the process that responded, as the list of processes has it.
	Process string `json:"process"`
}

// Me returns what an actor with a role may do. process is the id of this process.
func Me(by adminauth.Actor, role adminauth.Role, process string) *Caller {
	c := &Caller{Name: by.Name, Role: role, Via: by.Via, Allowed: []string{"read"}, Process: process}
	if role.Includes(adminauth.Approver) {
		c.Allowed = append(c.Allowed, "decide")
	}
	if role.Includes(adminauth.Operator) {
		c.Allowed = append(c.Allowed, "change", "profile")
	}
	return c
}
