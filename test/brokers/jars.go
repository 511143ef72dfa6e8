package brokers

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// KafkaVersion is the Apache Kafka that the tests run on unless Options say otherwise.
const KafkaVersion = "4.4.0"

// minJava is what Apache Kafka 4 brokers need.
const minJava = 17

const fetchTimeout = 5 * time.Minute

//go:embed kafka/pom.xml
var pom []byte

var javaVersion = regexp.MustCompile(`version "(\d+)`)

// findJava returns the path of a java that can run a broker: that of JAVA_HOME,
// else the first in PATH.
func findJava() (string, error) {
	const fix = "install it (Debian: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	path, err := exec.LookPath(java)
	if err != nil {
		return "", fmt.Errorf("apache kafka %w: it needs Java %d: %s", ErrUnavailable, minJava, fix)
	}
	out, err := exec.Command(path, "-version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("apache kafka %w: %s -version: %w: %s", ErrUnavailable, path, err, fix)
	}
	found := javaVersion.FindSubmatch(out)
	if found == nil {
		return path, nil // unusual, not necessarily too old: let it try
	}
	if major, err := strconv.Atoi(string(found[1])); err == nil && major < minJava {
		return "", fmt.Errorf("apache kafka %w: %s is Java %d and Java %d is needed: %s", ErrUnavailable, path, major, minJava, fix)
	}
	return path, nil
}

// jars returns the directory with the jars of a version of the broker. The first
// caller of a user fetches them with Maven; others wait for it. The directory
// appears whole or not at all.
func jars(version string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir() // no home: a daemon's account, a bare container
	}
	cache = filepath.Join(cache, "recon-dlq")
	// Another list of jars is another directory.
	libs := filepath.Join(cache, fmt.Sprintf("kafka-%s-%08x", version, crc32.ChecksumIEEE(pom)))
	if _, err := os.Stat(libs); err == nil {
		return libs, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("make the cache of kafka jars: %w", err)
	}
	unlock, err := lock(libs + ".lock")
	if err != nil {
		return "", fmt.Errorf("lock the cache of kafka jars: %w", err)
	}
	defer unlock()
	if _, err := os.Stat(libs); err == nil {
		return libs, nil
	}
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return "", fmt.Errorf("apache kafka %w: its jars are fetched with Maven: install it (Debian: apt-get install maven)", ErrUnavailable)
	}
	partial, err := os.MkdirTemp(cache, "fetch-")
	if err != nil {
		return "", fmt.Errorf("make room for kafka jars: %w", err)
	}
	defer os.RemoveAll(partial)
	pomFile := filepath.Join(partial, "pom.xml")
	if err := os.WriteFile(pomFile, pom, 0o644); err != nil {
		return "", fmt.Errorf("write the list of kafka jars: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	fresh := filepath.Join(partial, "libs")
	cmd := exec.CommandContext(ctx, mvn, "-q", "-B", "-f", pomFile, "-Dkafka.version="+version,
		"dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+fresh)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("apache kafka %w: fetch its jars with %s: %w: %s", ErrUnavailable, mvn, errors.Join(err, ctx.Err()), lastLines(string(out), 5))
	}
	if err := os.Rename(fresh, libs); err != nil {
		return "", fmt.Errorf("keep the kafka jars: %w", err)
	}
	return libs, nil
}

// lastLines returns the last n lines of s on one line.
func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, " | ")
}
