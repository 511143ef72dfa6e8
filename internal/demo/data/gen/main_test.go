package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestTheFilesInTheRepositoryAreWhatGenMakes(t *testing.T) {
	files, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 4 {
		t.Errorf("%d files are made, want 4", len(files))
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what gen makes: run go generate ./internal/demo/data", name)
		}
	}
}
