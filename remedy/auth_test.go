package remedy

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/recon-dlq/recon-dlq/deadletter"
)

// secretFile is a file with a secret, as an editor would leave it.
func secretFile(t *testing.T, secret string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	write(t, file, secret+"\n")
	return file
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func hmacText(b byte) string {
	return "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat(string(b), 32)))
}

func TestTheSignatureIsThatOfStandardWebhooks(t *testing.T) {
	// The example of the reference libraries.
	secret, err := base64.StdEncoding.DecodeString("plJ3nmyCDGBKInavdOK15jsl")
	if err != nil {
		t.Fatal(err)
	}
	got := signature(secret, "msg_loFOjxBNrRLzqYUf", "1731705121", []byte(`{"event_type":"ping","data":{"success":true}}`))
	if want := "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestARequestCarriesTheCredentials(t *testing.T) {
	old, young := hmacText('a'), hmacText('b')
	sign := func(secret string, body []byte) string {
		key, err := hmacSecret(secret)
		if err != nil {
			t.Fatal(err)
		}
		return signature(key, record().ID, fmt.Sprint(now.Unix()), body)
	}
	for name, c := range map[string]struct {
		auth HTTPAuth
		want map[string]string
	}{
		"none":     {HTTPAuth{}, map[string]string{"Authorization": "", "Webhook-Signature": "", "Webhook-Id": ""}},
		"a bearer": {HTTPAuth{BearerFile: secretFile(t, "t0ken")}, map[string]string{"Authorization": "Bearer t0ken", "Webhook-Signature": ""}},
		"a user":   {HTTPAuth{User: "wörker", PasswordFile: secretFile(t, "pa:ss")}, map[string]string{"Authorization": "Basic " + base64.StdEncoding.EncodeToString([]byte("wörker:pa:ss"))}},
		"a signature": {HTTPAuth{HMACFile: secretFile(t, young)}, map[string]string{
			"Webhook-Id": record().ID, "Webhook-Timestamp": fmt.Sprint(now.Unix()), "Webhook-Signature": sign(young, record().Value), "Authorization": "",
		}},
		"two secrets and a bearer": {HTTPAuth{BearerFile: secretFile(t, "t0ken"), HMACFile: secretFile(t, young), PreviousHMACFile: secretFile(t, old)}, map[string]string{
			"Authorization": "Bearer t0ken", "Webhook-Signature": sign(young, record().Value) + " " + sign(old, record().Value),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var got http.Header
			url := served(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header })
			if o := target(t, HTTPOptions{URL: url, Auth: c.auth}).Remediate(t.Context(), record()); o.Class != deadletter.Resolved {
				t.Fatalf("got %+v", o)
			}
			for header, want := range c.want {
				if got.Get(header) != want {
					t.Errorf("%s: %q, want %q", header, got.Get(header), want)
				}
			}
		})
	}
}

func TestAChangedSecretIsUsedFromTheNextCallOn(t *testing.T) {
	var got string
	url := served(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get("Authorization") })
	file := secretFile(t, "one")
	h := target(t, HTTPOptions{URL: url, Auth: HTTPAuth{BearerFile: file}})
	h.Remediate(t.Context(), record())
	if got != "Bearer one" {
		t.Errorf("sent %q", got)
	}
	write(t, file, "two")
	h.Remediate(t.Context(), record())
	if got != "Bearer two" {
		t.Errorf("sent %q after the change", got)
	}
}

func TestWithoutItsCredentialsNothingIsSentAndNothingCounted(t *testing.T) {
	file := secretFile(t, "one")
	url := served(t, func(http.ResponseWriter, *http.Request) { t.Error("a request was sent") })
	h := target(t, HTTPOptions{URL: url, Auth: HTTPAuth{BearerFile: file}})
	for text, want := range map[string]string{
		"":                                "auth.bearer_file: the file is empty",
		"hunter2 hunter2":                 "auth.bearer_file: the file has spaces, control characters or letters beyond ASCII: want one token",
		strings.Repeat("x", maxSecret+1):  "auth.bearer_file: the file is too large",
		"hunter2\x00":                     "auth.bearer_file: the file has spaces, control characters or letters beyond ASCII: want one token",
		"hünter2":                         "auth.bearer_file: the file has spaces, control characters or letters beyond ASCII: want one token",
		"hunter2\r\nX-Evil: 1\r\nhunter2": "auth.bearer_file: the file has spaces, control characters or letters beyond ASCII: want one token",
	} {
		write(t, file, text)
		if o := h.Remediate(t.Context(), record()); o.Class != deadletter.Unavailable || o.Cause != CauseCredentials || o.Message != want {
			t.Errorf("%.20q: got %+v", text, o)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if o := h.Remediate(t.Context(), record()); o.Cause != CauseCredentials || o.Message != "auth.bearer_file: no such file or directory" {
		t.Errorf("no file: got %+v", o)
	}
}

func TestCredentialsAreCheckedAtOnceAndNeverShown(t *testing.T) {
	short := "whsec_" + base64.StdEncoding.EncodeToString([]byte("hunter2"))
	for name, c := range map[string]struct {
		change func(o *HTTPOptions)
		want   []string
	}{
		"two of a kind": {func(o *HTTPOptions) {
			o.Auth = HTTPAuth{BearerFile: secretFile(t, "x"), User: "u", PasswordFile: secretFile(t, "x")}
		}, []string{"auth: a bearer token and a user at once"}},
		"no password":         {func(o *HTTPOptions) { o.Auth.User = "u" }, []string{"auth.basic: user and password_file"}},
		"no user":             {func(o *HTTPOptions) { o.Auth.PasswordFile = secretFile(t, "x") }, []string{"auth.basic: user and password_file"}},
		"a colon in the user": {func(o *HTTPOptions) { o.Auth = HTTPAuth{User: "u:hunter2", PasswordFile: secretFile(t, "x")} }, []string{"auth.basic.user:"}},
		"a missing file":      {func(o *HTTPOptions) { o.Auth.BearerFile = "/no/such" }, []string{"auth.bearer_file: no such file"}},
		"a directory":         {func(o *HTTPOptions) { o.Auth.BearerFile = t.TempDir() }, []string{"auth.bearer_file: is a directory"}},
		"several at once": {func(o *HTTPOptions) { o.Auth = HTTPAuth{BearerFile: "/no/such", HMACFile: secretFile(t, "hunter2")} },
			[]string{"auth.bearer_file: no such file", "auth.hmac.secret_file: the secret is not whsec_ and base64"}},
		"bad base64":     {func(o *HTTPOptions) { o.Auth.HMACFile = secretFile(t, "whsec_hunter2") }, []string{"auth.hmac.secret_file: the secret is not whsec_ and base64"}},
		"a short secret": {func(o *HTTPOptions) { o.Auth.HMACFile = secretFile(t, short) }, []string{"auth.hmac.secret_file: the secret must have 24 to 64 bytes"}},
		"a bad old one": {func(o *HTTPOptions) {
			o.Auth = HTTPAuth{HMACFile: secretFile(t, hmacText('a')), PreviousHMACFile: secretFile(t, short)}
		}, []string{"auth.hmac.previous_secret_file: the secret must have"}},
		"an old one only":      {func(o *HTTPOptions) { o.Auth.PreviousHMACFile = secretFile(t, hmacText('a')) }, []string{"auth.hmac: previous_secret_file needs secret_file"}},
		"TLS without https":    {func(o *HTTPOptions) { o.URL, o.TLS.CA = "http://h/", "/no/such" }, []string{"tls: needs a url that starts with https://", "tls.ca_file: no such file"}},
		"a key without":        {func(o *HTTPOptions) { o.TLS.Key = "/no/such" }, []string{"tls: cert_file and key_file belong together"}},
		"no PEM in the CA":     {func(o *HTTPOptions) { o.TLS.CA = secretFile(t, "hunter2") }, []string{"tls.ca_file: the file has no certificate in PEM"}},
		"no PEM in the pair":   {func(o *HTTPOptions) { o.TLS.Cert, o.TLS.Key = secretFile(t, "hunter2"), secretFile(t, "hunter2") }, []string{"tls.cert_file: the files are no certificate and its key in PEM"}},
		"a metadata service":   {func(o *HTTPOptions) { o.URL = "http://169.254.169.254/hunter2" }, []string{"url: the address is link-local"}},
		"the same over IPv6":   {func(o *HTTPOptions) { o.URL = "http://[::ffff:169.254.169.254]/" }, []string{"url: the address is link-local"}},
		"an address with zone": {func(o *HTTPOptions) { o.URL = "http://[fe80::1%25eth0]/" }, []string{"url: the address is link-local"}},
	} {
		o := HTTPOptions{URL: "https://localhost/", Timeout: time.Second, Source: "w"}
		c.change(&o)
		h, err := NewHTTP(o)
		if err == nil || h != nil {
			t.Errorf("%s: accepted", name)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error does not say %q: %v", name, want, err)
			}
		}
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error has a secret: %v", name, err)
		}
	}
}
