package remedy

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
)

const (
	maxSecret = 8 << 10 // of a secret's file, in bytes
	maxPEM    = 1 << 20 // of a file of certificates or a key, in bytes
)

// credentialsError says that credentials of the worker's own cannot be used. It
// names the option, and nothing of what its file holds.
type credentialsError struct {
	option string
	err    error
}

func (e *credentialsError) Error() string { return e.option + ": " + e.err.Error() }
func (e *credentialsError) Unwrap() error { return e.err }

// readSecret reads a file that holds one token of printable ASCII; its ends are
// trimmed. Secrets are read when they are needed, so that one that is changed is
// used from the next call on: that takes some microseconds of a call's milliseconds,
// and there is no copy to grow old.
func readSecret(option, file string) (string, error) {
	data, err := readFile(file, maxSecret)
	secret := strings.TrimSpace(string(data))
	switch {
	case err != nil:
	case secret == "":
		err = errors.New("the file is empty")
	case strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }):
		err = errors.New("the file has spaces, control characters or letters beyond ASCII: want one token")
	}
	if err != nil {
		return "", &credentialsError{option, err}
	}
	return secret, nil
}

// readFile reads a file of at most limit bytes. Its error does not have the path
// again, which the option's name stands for.
func readFile(file string, limit int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, bare(err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	switch {
	case err != nil:
		return nil, bare(err)
	case int64(len(data)) > limit:
		return nil, errors.New("the file is too large")
	}
	return data, nil
}

func bare(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
