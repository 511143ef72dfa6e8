package remedy

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// HTTPAuth says how a target knows the worker, beside TLS. All of it are files, but
// for the user, and each is read again for every call.
type HTTPAuth struct {
	BearerFile   string // token of Authorization: Bearer (RFC 6750)
	User         string // of Authorization: Basic (RFC 7617)
	PasswordFile string // with User
	// HMACFile is the secret that requests are signed with by Standard Webhooks 1.0.0,
	// "whsec_" and base64 of 24 to 64 bytes. With PreviousHMACFile there are two
	// signatures, while a secret is replaced.
	HMACFile         string
	PreviousHMACFile string
}

// check reports everything that is wrong, the files' contents included.
func (a HTTPAuth) check() (faults []error) {
	if a.BearerFile != "" && a.User+a.PasswordFile != "" {
		faults = append(faults, errors.New("auth: a bearer token and a user at once: both are the Authorization header, use one"))
	}
	if (a.User == "") != (a.PasswordFile == "") {
		faults = append(faults, errors.New("auth.basic: user and password_file belong together"))
	}
	if strings.ContainsFunc(a.User, func(r rune) bool { return r < ' ' || r == ':' || r == 0x7F }) {
		faults = append(faults, errors.New("auth.basic.user: must have no colon and no control character"))
	}
	if a.PreviousHMACFile != "" && a.HMACFile == "" {
		faults = append(faults, errors.New("auth.hmac: previous_secret_file needs secret_file"))
	}
	if _, err := a.authorization(); err != nil {
		faults = append(faults, err)
	}
	if _, err := a.signatures("", "", nil); err != nil {
		faults = append(faults, err)
	}
	return faults
}

// set puts the credentials into a request's header. The error is a *credentialsError.
func (a HTTPAuth) set(h http.Header, id string, body []byte, now time.Time) error {
	authorization, err := a.authorization()
	if err != nil {
		return err
	}
	if authorization != "" {
		h.Set("Authorization", authorization)
	}
	timestamp := strconv.FormatInt(now.Unix(), 10)
	signatures, err := a.signatures(id, timestamp, body)
	if err != nil || signatures == "" {
		return err
	}
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", timestamp)
	h.Set("Webhook-Signature", signatures)
	return nil
}

// authorization is the header of that name; empty where there is none.
func (a HTTPAuth) authorization() (string, error) {
	switch {
	case a.BearerFile != "":
		token, err := readSecret("auth.bearer_file", a.BearerFile)
		return "Bearer " + token, err
	case a.PasswordFile != "":
		password, err := readSecret("auth.basic.password_file", a.PasswordFile)
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(a.User+":"+password)), err
	default:
		return "", nil
	}
}

// signatures are those of id, timestamp and body, one for each secret; empty where
// there is none.
func (a HTTPAuth) signatures(id, timestamp string, body []byte) (string, error) {
	var all []string
	for _, f := range []struct{ option, file string }{
		{"auth.hmac.secret_file", a.HMACFile},
		{"auth.hmac.previous_secret_file", a.PreviousHMACFile},
	} {
		if f.file == "" {
			continue
		}
		text, err := readSecret(f.option, f.file)
		if err != nil {
			return "", err
		}
		secret, err := hmacSecret(text)
		if err != nil {
			return "", &credentialsError{f.option, err}
		}
		all = append(all, signature(secret, id, timestamp, body))
	}
	return strings.Join(all, " "), nil
}

// Bounds of a secret by Standard Webhooks, in bytes.
const (
	minHMACSecret = 24
	maxHMACSecret = 64
)

func hmacSecret(text string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(text, "whsec_")
	secret, err := base64.StdEncoding.DecodeString(encoded)
	switch {
	case !ok || err != nil:
		return nil, errors.New("the secret is not whsec_ and base64")
	case len(secret) < minHMACSecret || len(secret) > maxHMACSecret:
		return nil, errors.New("the secret must have 24 to 64 bytes")
	}
	return secret, nil
}

func signature(secret []byte, id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	_, _ = mac.Write([]byte(id + "." + timestamp + ".")) // never an error, see hash.Hash
	_, _ = mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
