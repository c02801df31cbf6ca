package main

import (
	"strings"
	"testing"
)

func memoryOnly() ([]column, []row, map[string][]string) {
	return []column{{"memory", "transport/memory", "TestConformance", "default", nil}},
		[]row{{promise: "bytes arrive"}, {promise: "Watermill's suite", test: "TestWatermillSuite"}},
		map[string][]string{
			"TestConformance":    {"transport/other/conformance_test.go", "transport/memory/conformance_test.go"},
			"TestWatermillSuite": {"transport/memory/pubsub_test.go"},
		}
}

func read(t *testing.T, lines ...string) results {
	t.Helper()
	res := make(results)
	if err := res.read("transport/memory", strings.NewReader(strings.Join(lines, "\n"))); err != nil {
		t.Fatal(err)
	}
	return res
}

const (
	passed  = `{"Action":"pass","Test":"TestConformance/bytes_arrive"}`
	suite   = `{"Action":"pass","Test":"TestWatermillSuite/default"}`
	skipped = `{"Action":"skip","Test":"TestConformance/bytes_arrive"}`
)

func TestTableLinksEachPromiseToItsTest(t *testing.T) {
	t.Parallel()
	columns, promises, tests := memoryOnly()
	table, err := render(columns, promises, read(t, passed, suite), tests)
	if err != nil {
		t.Fatal(err)
	}
	want := "| promise | memory |\n| --- | --- |\n| *its suite* | `TestConformance` |\n" +
		"| bytes arrive | [pass](../transport/memory/conformance_test.go) |\n" +
		"| Watermill's suite (`TestWatermillSuite`) | [pass](../transport/memory/pubsub_test.go) |\n"
	if table != want {
		t.Errorf("got\n%swant\n%s", table, want)
	}
}

func TestSkippedCapabilityIsNamed(t *testing.T) {
	t.Parallel()
	columns, promises, tests := memoryOnly()
	output := `{"Action":"output","Test":"TestConformance/bytes_arrive","Output":"capability \"bytes\" is not declared\n"}`
	table, err := render(columns, promises, read(t, output, skipped, suite), tests)
	if err != nil || !strings.Contains(table, "| bytes arrive | skipped: capability bytes |") {
		t.Errorf("got %v\n%s", err, table)
	}
}

func TestPromiseThatIsNotShownIsAnError(t *testing.T) {
	t.Parallel()
	columns, promises, tests := memoryOnly()
	for name, tc := range map[string]struct {
		res   results
		tests map[string][]string
		says  string
	}{
		"test fails":                    {read(t, strings.Replace(passed, "pass", "fail", 1), suite), tests, "bytes_arrive failed"},
		"test deleted":                  {read(t, suite), tests, "TestConformance/bytes_arrive is missing"},
		"other test deleted":            {read(t, passed), tests, "TestWatermillSuite/default is missing"},
		"skipped for no capability":     {read(t, skipped, suite), tests, "not for a capability"},
		"never ended":                   {read(t, strings.Replace(passed, "pass", "run", 1), suite), tests, "is missing"},
		"a test of another package's":   {read(t, passed, suite), map[string][]string{"TestConformance": {"bus/a_test.go"}}, "no file of transport/memory"},
		"nothing was run, as by chance": {results{}, tests, "is missing"},
	} {
		if _, err := render(columns, promises, tc.res, tc.tests); err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: got %v, want an error that says %q", name, err, tc.says)
		}
	}
}

func TestOnlyWhatIsBetweenTheMarksIsReplaced(t *testing.T) {
	t.Parallel()
	got, err := replace([]byte("before\n"+begin+"old\n"+end+"after\n"), "new\n")
	if err != nil || string(got) != "before\n"+begin+"new\n"+end+"after\n" {
		t.Errorf("got %v %q", err, got)
	}
	if _, err := replace([]byte("no marks"), "new\n"); err == nil {
		t.Error("a page without marks was taken")
	}
}

func TestPageThatNamesATestThereIsNotIsRefused(t *testing.T) {
	t.Parallel()
	_, _, tests := memoryOnly()
	if err := checkNames([]byte("see `TestConformance/x` and `TestWatermillSuite`"), tests); err != nil {
		t.Error(err)
	}
	if err := checkNames([]byte("see `TestGone`"), tests); err == nil || !strings.Contains(err.Error(), "TestGone") {
		t.Errorf("got %v", err)
	}
}

func TestFindTestsFindsThisOne(t *testing.T) {
	t.Parallel()
	tests, err := findTests(".")
	if err != nil || len(tests["TestFindTestsFindsThisOne"]) != 1 {
		t.Errorf("found %v, %v", tests, err)
	}
}
