package operations

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
)

// NewTokenParams describe a new token. Without Expires it never expires.
type NewTokenParams struct {
	Name    string  `json:"name,omitzero"`
	Role    string  `json:"role,omitzero"`
	Expires *string `json:"expires,omitzero"`
	Reason  string  `json:"reason,omitzero"`
}

// NewToken is a token with its secret, which is shown only once.
type NewToken struct {
	*adminauth.Token
	Secret string `json:"token"`
}

// CreateToken creates a token. No HTTP route does this, so that a stolen token cannot create
// others. Errors: events.ErrInvalid.
func CreateToken(ctx context.Context, pool *pgxpool.Pool, p NewTokenParams, by Requester) (*NewToken, error) {
	var expires time.Time
	if p.Expires != nil {
		var err error
		if expires, err = futureTime("expires", *p.Expires); err != nil {
			return nil, err
		}
	}
	return change(ctx, pool, by, "token create", p.Reason, func(ctx context.Context, tx pgx.Tx,
		e *adminauth.AuditEntry) (*NewToken, error) {
		secret, t, err := adminauth.CreateToken(ctx, tx, p.Name, adminauth.Role(p.Role), by.String(), expires)
		if err != nil {
			return nil, err
		}
		e.Target = fmt.Sprintf("token %s, %s", t.Name, t.Role)
		return &NewToken{t, secret}, nil
	})
}

// RevokeToken revokes a token permanently. Errors: events.ErrNotFound.
func RevokeToken(ctx context.Context, pool *pgxpool.Pool, name, reason string, by Requester) (*adminauth.Token, error) {
	return change(ctx, pool, by, "token revoke", reason, func(ctx context.Context, tx pgx.Tx,
		e *adminauth.AuditEntry) (*adminauth.Token, error) {
		e.Target = "token " + name
		return adminauth.RevokeToken(ctx, tx, name)
	})
}
