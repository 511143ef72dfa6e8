package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds the configuration file, in bytes.
const maxFile = 1 << 20

// tree is what a file says: its values by path, as they were written, and where.
type tree struct {
	file   string
	values map[string]any  // string or []string, by path: kafka.brokers, targets[0].name
	count  map[string]int  // entries of a list of entries
	lines  map[string]int  // of every key and entry
	spoilt map[string]bool // paths with a fault: what is wrong there is not also missing
	holed  map[string]int  // how many paths below one are spoilt
	faults []Fault
}

func newTree(file string) *tree {
	return &tree{
		file:   file,
		values: make(map[string]any),
		count:  make(map[string]int),
		lines:  make(map[string]int),
		spoilt: make(map[string]bool),
		holed:  make(map[string]int),
	}
}

// spoil notes that path has a fault; mend takes it back.
func (t *tree) spoil(path string) {
	if !t.spoilt[path] {
		t.spoilt[path] = true
		for p := above(path); p != ""; p = above(p) {
			t.holed[p]++
		}
	}
}

func (t *tree) mend(path string) {
	if t.spoilt[path] {
		delete(t.spoilt, path)
		for p := above(path); p != ""; p = above(p) {
			t.holed[p]--
		}
	}
}

// above is the path that path lies under; empty: none.
func above(path string) string { return path[:max(0, strings.LastIndexAny(path, ".["))] }

func (t *tree) fault(path string, line int, format string, args ...any) {
	t.spoil(path)
	t.faults = append(t.faults, Fault{Path: path, From: t.file, Line: line, Msg: fmt.Sprintf(format, args...)})
}

// read reads and walks the file. What is wrong is in the tree's faults.
func (t *tree) read() {
	data, err := slurp(t.file, maxFile)
	if err != nil {
		t.fault("", 0, "%s", fileProblem(err))
		return
	}
	t.parse(data)
}

var errTooLarge = errors.New("file is too large")

// slurp reads a file of at most limit bytes.
func slurp(file string, limit int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, errTooLarge
	}
	return data, nil
}

// fileProblem says in plain words why a file cannot be read.
func fileProblem(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "no such file"
	case errors.Is(err, fs.ErrPermission):
		return "no permission to read the file"
	case errors.Is(err, syscall.EISDIR):
		return "is a directory, not a file"
	case errors.Is(err, errTooLarge):
		return "file is too large"
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err.Error()
	}
	return err.Error()
}

func (t *tree) parse(data []byte) {
	if bytes.HasPrefix(data, []byte{0xFE, 0xFF}) || bytes.HasPrefix(data, []byte{0xFF, 0xFE}) {
		t.fault("", 1, "the file is UTF-16: save it as UTF-8")
		return
	}
	data = bytes.TrimPrefix(data, []byte("\uFEFF")) // a mark that YAML allows
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 || r == 0 {
			t.fault("", 1+bytes.Count(data[:i], []byte("\n")), "the file is not text in UTF-8")
			return
		}
		i += size
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return // empty: all defaults
	case err != nil:
		t.notYAML(data, err)
		return
	}
	var second yaml.Node
	switch err := dec.Decode(&second); {
	case err == nil:
		t.fault("", second.Line, "a second document begins here: a configuration is one document")
	case !errors.Is(err, io.EOF):
		t.notYAML(data, err)
		return
	}
	root := doc.Content[0]
	if isNull(root) {
		return
	}
	if root.Kind != yaml.MappingNode {
		t.fault("", root.Line, "the file is not a configuration: want keys such as %q", "kafka:")
		return
	}
	t.group("", &schema, root)
}

// yamlLine finds the place in the library's messages.
var yamlLine = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?(.*)$`)

func (t *tree) notYAML(data []byte, err error) {
	line, msg := 0, "cannot be read"
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		line, _ = strconv.Atoi(m[1])
		msg = m[2]
	}
	// The library's line is where it gave up, which is at or after the tab.
	for i, text := range strings.Split(string(data), "\n") {
		if indent := text[:len(text)-len(strings.TrimLeft(text, " \t"))]; strings.Contains(indent, "\t") && strings.TrimSpace(text) != "" {
			t.fault("", i+1, "a tab is used to indent: YAML wants spaces")
			return
		}
	}
	// Quoted words are from the file: they could be a secret.
	if strings.ContainsAny(msg, "'`\"") && !strings.HasPrefix(msg, "could not find expected") && !strings.HasPrefix(msg, "did not find expected") {
		msg = "a character or name that has no meaning here"
	}
	t.fault("", line, "not YAML: %s", msg)
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// group walks the keys under path.
func (t *tree) group(path string, k *key, n *yaml.Node) {
	seen := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		kn, vn := n.Content[i], n.Content[i+1]
		name := kn.Value
		sub := k.find(name)
		if sub == nil {
			sub = t.unknown(path, k, kn)
			if sub == nil {
				continue
			}
			name = sub.name
		}
		p := join(path, name)
		if first, twice := seen[name]; twice {
			t.fault(p, kn.Line, "is written twice, first on line %d", first)
			continue
		}
		seen[name] = kn.Line
		t.lines[p] = kn.Line
		t.value(p, sub, vn)
	}
}

// unknown reports a key that is not in the schema. It gives the key that was
// meant where only the case is wrong, so that what is under it is checked too.
func (t *tree) unknown(path string, k *key, kn *yaml.Node) *key {
	if kn.Kind != yaml.ScalarNode || !plainName.MatchString(kn.Value) {
		t.fault(path, kn.Line, "a key here is not a name: known are %s", strings.Join(k.names(), ", "))
		return nil
	}
	p := join(path, kn.Value)
	if sub := k.find(strings.ToLower(kn.Value)); sub != nil {
		t.fault(p, kn.Line, "unknown key: keys are lower case, write %q", sub.name)
		return sub
	}
	if meant, ok := nearest(strings.ToLower(kn.Value), k.names()); ok {
		t.fault(p, kn.Line, "unknown key: did you mean %q?", meant)
		t.spoil(join(path, meant))
		return nil
	}
	var elsewhere string
	schema.each("", func(path string, k *key) {
		if elsewhere == "" && k.name == strings.ToLower(kn.Value) && k.kind != later {
			elsewhere = path
		}
	})
	if elsewhere != "" {
		t.fault(p, kn.Line, "unknown key here: did you mean %q?", elsewhere)
		return nil
	}
	t.fault(p, kn.Line, "unknown key: known here are %s", strings.Join(k.names(), ", "))
	return nil
}

// plainName matches what can be shown of a key: anything else may be a value that slipped.
var plainName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// value reads what stands at path.
func (t *tree) value(path string, k *key, n *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		t.fault(path, n.Line, "aliases are not supported: write the value out")
		return
	}
	if isNull(n) {
		return // as if it were not written
	}
	switch k.kind {
	case later:
		if !isEmpty(n) {
			t.fault(path, n.Line, "is not supported yet: remove it")
		}
	case secret:
		t.fault(path, n.Line, "a secret does not belong in the file: put it in a file of its own and name that in %s_file, or set %s", path, envName(path))
	case text:
		if s, ok := t.scalar(path, n); ok {
			t.values[path] = s
		}
	case texts, some:
		if k.kind == some && n.Kind == yaml.ScalarNode {
			if s, ok := t.scalar(path, n); ok {
				t.values[path] = []string{s}
			}
			return
		}
		if n.Kind != yaml.SequenceNode {
			t.fault(path, n.Line, "want a list, such as [a, b]")
			return
		}
		list := make([]string, 0, len(n.Content))
		for i, c := range n.Content {
			p := fmt.Sprintf("%s[%d]", path, i)
			t.lines[p] = c.Line
			s, ok := t.scalar(p, c)
			if !ok {
				t.spoil(path)
			}
			list = append(list, s)
		}
		t.values[path] = list
	case group:
		if n.Kind != yaml.MappingNode {
			t.fault(path, n.Line, "want keys under it: %s", strings.Join(k.names(), ", "))
			return
		}
		t.group(path, k, n)
	case items:
		if n.Kind != yaml.SequenceNode {
			t.fault(path, n.Line, "want a list of entries, each beginning with %q", "- "+k.keys[0].name+":")
			return
		}
		t.count[path] = len(n.Content)
		for i, c := range n.Content {
			p := fmt.Sprintf("%s[%d]", path, i)
			t.lines[p] = c.Line
			if c.Kind != yaml.MappingNode {
				t.fault(p, c.Line, "want keys: %s", strings.Join(k.names(), ", "))
				continue
			}
			t.group(p, k, c)
		}
	}
}

// scalar reads text, as it is written.
func (t *tree) scalar(path string, n *yaml.Node) (string, bool) {
	if n.Kind != yaml.ScalarNode || isNull(n) {
		t.fault(path, n.Line, "want one value")
		return "", false
	}
	if n.Style&yaml.TaggedStyle != 0 {
		t.fault(path, n.Line, "tags are not supported")
		return "", false
	}
	return n.Value, true
}

func isEmpty(n *yaml.Node) bool {
	switch n.Kind {
	case yaml.ScalarNode:
		return n.Value == ""
	case yaml.SequenceNode, yaml.MappingNode:
		return len(n.Content) == 0
	}
	return false
}

// line is that of path, or of the nearest key above it.
func (t *tree) line(path string) int {
	for {
		if n, ok := t.lines[path]; ok {
			return n
		}
		if path = above(path); path == "" {
			return 0
		}
	}
}
