package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// tree is a temporary copy of the repository, to be broken.
type tree struct {
	dir string
	bin string // where its tests are compiled to
}

// copyTree copies the repository that the program is started in: what is
// tracked, as it is now, and what is neither tracked nor ignored.
func copyTree(ctx context.Context) (*tree, error) {
	top, err := exec.CommandContext(ctx, "git", "rev-parse", "--show-toplevel").Output()
	if err != nil {
		return nil, fmt.Errorf("start this program in a git checkout of the repository: %w", explain(err))
	}
	root := strings.TrimSpace(string(top))
	list := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	names, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list the files of %s: %w", root, explain(err))
	}
	tmp, err := os.MkdirTemp("", "recon-dlq-mutants-")
	if err != nil {
		return nil, err
	}
	t := &tree{dir: filepath.Join(tmp, "tree"), bin: filepath.Join(tmp, "bin")}
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		if err := t.add(root, name); err != nil {
			t.remove()
			return nil, fmt.Errorf("copy the tree: %w", err)
		}
	}
	return t, nil
}

// add copies one file. One that is tracked and deleted is left out.
func (t *tree) add(root, name string) error {
	from, to := filepath.Join(root, name), filepath.Join(t.dir, name)
	info, err := os.Stat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a file", name)
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, content, info.Mode().Perm())
}

func (t *tree) remove() { os.RemoveAll(filepath.Dir(t.dir)) }

func (t *tree) apply(ctx context.Context, m mutant) error {
	if err := t.git(ctx, m, "apply"); err != nil {
		return fmt.Errorf("test/mutants/%s.patch no longer applies, make it anew: %w", m.name, err)
	}
	return nil
}

func (t *tree) revert(ctx context.Context, m mutant) error {
	if err := t.git(ctx, m, "apply", "--reverse"); err != nil {
		return fmt.Errorf("test/mutants/%s.patch cannot be taken back: %w", m.name, err)
	}
	return nil
}

// git runs git over m's patch.
func (t *tree) git(ctx context.Context, m mutant, args ...string) error {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = t.dir
	cmd.Stdin = bytes.NewReader(m.patch)
	// In a repository git would go by its index and leave out what is not in it.
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(t.dir))
	_, err := cmd.Output()
	return explain(err)
}

// explain adds what a command said to the error of its end.
func explain(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
	}
	return err
}
