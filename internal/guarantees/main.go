// Command guarantees writes docs/guarantees.md's table of promises by transport from the results of the conformance suite:
// it runs each transport's tests and fails where a promise was not shown, so that the table says what is so today.
//
//	go run ./internal/guarantees          write the table anew
//	go run ./internal/guarantees -check   fail if the table is not what the tests say
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/seambus/seambus/transport/transporttest"
)

// column is one transport. A new one is a line in transports.
type column struct {
	title   string
	dir     string // of its package, from the module's root
	suite   string // the test that calls transporttest.Run
	subtest string // what the tests of extras are called in it, if it shares a package with others
	// own is what a test besides the suite is called in its package, if it has a name of its own there; empty if it has none.
	own map[string]string
}

// Tests that every transport's package has besides the suite, by these names or its own.
const (
	testStorm            = "TestOrderPerKeySurvivesEverything"
	testWatermill        = "TestWatermillSuite"
	testWatermillInOrder = "TestWatermillSuiteInOrder"
)

var sqsOwn = map[string]string{testStorm: "TestOrderAndCompletenessUnderRandomFaults"}

func transports() []column {
	return []column{
		{"memory", "transport/memory", "TestConformance", "default", nil},
		{"memory, strict SQS", "transport/memory", "TestConformanceStrictSQS", "strict SQS", nil},
		{"memory, strict Kafka", "transport/memory", "TestConformanceStrictKafka", "strict Kafka", nil},
		{"Kafka", "transport/kafka", "TestConformance", "", map[string]string{testStorm: "TestSoakOfRebalances"}},
		{"SQS", "transport/sqs", "TestConformance", "", sqsOwn},
		{"SQS behind SNS", "transport/sqs", "TestConformanceBehindSNS", "", map[string]string{
			testStorm: "", testWatermill: "", testWatermillInOrder: "",
		}},
	}
}

// row is one promise and the test that shows it: a case of the suite, or where test is set a test that every transport's
// package has besides.
type row struct {
	promise string
	test    string
}

func rows() []row {
	var all []row
	for _, c := range transporttest.Cases() {
		all = append(all, row{promise: c.Name})
	}
	return append(all,
		row{"order per key through failures, leaving members, crashes and lost leases", testStorm},
		row{"Watermill's own suite", testWatermill},
		row{"Watermill's own suite, in order", testWatermillInOrder},
	)
}

// testName returns the name of the test that shows r for c; empty if there is none.
func (c column) testName(r row) string {
	own, named := c.own[r.test]
	switch {
	case named:
		return own
	case r.test == "":
		return c.suite + "/" + underscored(r.promise)
	case c.subtest != "":
		return r.test + "/" + underscored(c.subtest)
	default:
		return r.test
	}
}

// underscored is what package testing makes of a subtest's name.
func underscored(name string) string { return strings.ReplaceAll(name, " ", "_") }

const page = "docs/guarantees.md"

func main() {
	check := flag.Bool("check", false, "fail if the page is not what the tests say, and write nothing")
	flag.Parse()
	if err := run(context.Background(), ".", *check); err != nil {
		fmt.Fprintln(os.Stderr, "guarantees:", err)
		os.Exit(1)
	}
}

// run brings the page of the module at root up to date, or says how it is not.
func run(ctx context.Context, root string, check bool) error {
	res := make(results)
	var errs []error
	for _, dir := range directories(transports()) {
		errs = append(errs, runTests(ctx, root, dir, res))
	}
	tests, err := findTests(root)
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	table, err := render(transports(), rows(), res, tests)
	if err != nil {
		return err
	}
	old, err := os.ReadFile(filepath.Join(root, page)) //nolint:gosec // root is given by the program itself
	if err != nil {
		return err
	}
	fresh, err := replace(old, table)
	if err := errors.Join(err, checkNames(fresh, tests)); err != nil {
		return err
	}
	switch {
	case bytes.Equal(old, fresh):
		return nil
	case check:
		return fmt.Errorf("%s is not what the tests say: run make guarantees and look at the difference", page)
	default:
		return os.WriteFile(filepath.Join(root, page), fresh, 0o644) //nolint:gosec // a page for everybody to read
	}
}

func directories(columns []column) []string {
	var dirs []string
	for _, c := range columns {
		if len(dirs) == 0 || dirs[len(dirs)-1] != c.dir {
			dirs = append(dirs, c.dir)
		}
	}
	return dirs
}

// runTests runs the tests of one package that the table needs, and adds what became of them.
func runTests(ctx context.Context, root, dir string, into results) error {
	names := make(map[string]bool)
	for _, c := range transports() {
		for _, r := range rows() {
			if c.dir == dir {
				if name, _, _ := strings.Cut(c.testName(r), "/"); name != "" {
					names[name] = true
				}
			}
		}
	}
	var list []string
	for name := range names {
		list = append(list, name)
	}
	pattern := "^(" + strings.Join(list, "|") + ")$"
	cmd := exec.CommandContext(ctx, "go", "test", "-json", "-count=1", "-timeout=5m", "-run", pattern, "./"+dir) //nolint:gosec // names from this file
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		return err
	}
	return into.read(dir, bytes.NewReader(out)) // a failure is told by the test's name
}
