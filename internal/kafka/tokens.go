package kafka

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// Tokens gets tokens for OAUTHBEARER with the client-credentials grant (RFC 6749,
// section 4.4), and gives one to all connections until shortly before it expires.
type Tokens struct {
	url, clientID string
	scopes        []string
	secret        func() (string, error)
	client        *http.Client

	mu    sync.Mutex
	token *oauth2.Token
}

// NewTokens gets tokens from the endpoint at url. The secret is asked for each one.
func NewTokens(url, clientID string, secret func() (string, error), scopes []string) *Tokens {
	return &Tokens{
		url: url, clientID: clientID, scopes: scopes, secret: secret,
		client: &http.Client{
			Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
			// The secret is for the endpoint that is configured, not for where it sends us.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// Token gives a token that is valid for 10 s at least. The error names neither
// the endpoint's address nor anything of its answer but the code of RFC 6749.
func (t *Tokens) Token(ctx context.Context) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.token.Valid() && !t.token.Expiry.IsZero() {
		return t.token.AccessToken, nil
	}
	secret, err := t.secret()
	if err != nil {
		return "", err
	}
	c := clientcredentials.Config{TokenURL: t.url, ClientID: t.clientID, ClientSecret: secret, Scopes: t.scopes}
	token, err := c.Token(context.WithValue(ctx, oauth2.HTTPClient, t.client))
	if err != nil {
		return "", fmt.Errorf("kafka.sasl.token_url: no token: %w", tokenReason(err))
	}
	t.token = token
	return token.AccessToken, nil
}

func tokenReason(err error) error {
	refused, ok := errors.AsType[*oauth2.RetrieveError](err)
	if !ok {
		if network, ok := errors.AsType[*url.Error](err); ok {
			return fmt.Errorf("the endpoint cannot be reached: %w", network.Err)
		}
		return errors.New("what the endpoint answers is no token: is this the token endpoint?")
	}
	code := refused.ErrorCode
	if code == "" || strings.Trim(code, "abcdefghijklmnopqrstuvwxyz_") != "" {
		return fmt.Errorf("the endpoint answers with status %d: is this the token endpoint?", refused.Response.StatusCode)
	}
	if code == "invalid_client" || code == "unauthorized_client" {
		return fmt.Errorf("the endpoint does not accept this client and secret (%s): look at kafka.sasl.username and password_file", code)
	}
	return fmt.Errorf("the endpoint refuses (%s): look at kafka.sasl.scopes", code)
}
