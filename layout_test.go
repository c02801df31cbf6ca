package seambus_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/seambus/seambus"

// allowed says what each package may import of this module. Imports point down and never back.
var allowed = map[string][]string{
	"":                 {},
	"event":            {},
	"partition":        {},
	"transport":        {"event", "partition"},
	"transport/memory": {"event", "partition", "transport", "internal/crash", "internal/lazyctx"},
	// What tests import is no layer: the failure script is played below the standard chain, whatever the transport.
	"transport/transporttest":        {"event", "partition", "transport", "middleware"},
	"transport/kafka":                {"event", "partition", "transport", "internal/lazyctx"},
	"transport/sqs/internal/fakeaws": {},
	"transport/sqs":                  {"event", "transport", "internal/crash", "internal/lazyctx"},
	"middleware":                     {"event", "transport", "internal/errtext", "internal/lazyctx", "internal/tracing"},
	"outbox":                         {"event", "partition", "transport", "internal/crash", "internal/dialect", "internal/errtext", "internal/tracing", "internal/txhook"},
	"outbox/pgxoutbox":               {"outbox", "internal/dialect"},
	"outbox/wmsql":                   {"event", "partition", "internal/dialect"},
	"inbox/pgxinbox":                 {"inbox"},
	"inbox":                          {"event", "transport", "internal/crash", "internal/dialect", "internal/errtext", "internal/txhook"},
	"bus":                            {"event", "transport", "middleware", "outbox", "inbox", "internal/tracing"},
	"bus/bustest":                    {"bus", "event", "inbox", "internal/crash", "internal/dialect", "middleware", "outbox", "transport", "transport/memory"},
	"cmd/seambus":                    {"event", "inbox", "internal/dialect", "internal/drill", "outbox"},
	"internal/drill":                 {"bus", "event", "inbox", "internal/crash", "internal/dialect", "outbox", "transport", "transport/memory"},
	"internal/crash":                 {},
	"internal/dialect":               {"partition"},
	"internal/dialect/dialecttest":   {"internal/dialect"},
	"internal/errtext":               {},
	"internal/lazyctx":               {},
	"internal/guarantees":            {"transport/transporttest"},
	"internal/tracing":               {"event"},
	"internal/txhook":                {},
}

// outside says which packages of other modules the lowest layers may import.
var outside = map[string][]string{
	"partition": {},
	"event":     {"github.com/google/uuid", "github.com/ThreeDotsLabs/watermill/message"},
	"transport": {"github.com/ThreeDotsLabs/watermill/message"},
}

// home says which package alone may import modules with this prefix: a broker is known to its transport and to nobody else.
var home = map[string]string{
	"github.com/IBM/sarama":                    "transport/kafka",
	"github.com/twmb/":                         "transport/kafka",
	"github.com/ThreeDotsLabs/watermill-kafka": "transport/kafka",
	"github.com/ThreeDotsLabs/watermill-aws":   "transport/sqs",
	"github.com/aws/":                          "transport/sqs",
}

type goPackage struct {
	ImportPath string
	Dir        string
	Imports    []string
	GoFiles    []string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Dir,Imports,GoFiles", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestImportsPointDown(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
		if strings.HasPrefix(name, "examples/") {
			continue // the top: it may import everything that its own users may
		}
		may, known := allowed[name]
		if !known {
			t.Errorf("package %q has no place in the layout: give it one here", name)
		}
		for _, imp := range p.Imports {
			own, isOwn := strings.CutPrefix(imp, module+"/")
			switch {
			case isOwn && !slices.Contains(may, own):
				t.Errorf("%q imports %q, which is not below it", name, own)
			case !isOwn && strings.Contains(strings.SplitN(imp, "/", 2)[0], "."):
				if list, limited := outside[name]; limited && !slices.Contains(list, imp) {
					t.Errorf("%q imports %s", name, imp)
				}
			}
		}
	}
}

func TestBrokersAreKnownToTheirTransportsAlone(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			for prefix, at := range home {
				if strings.HasPrefix(imp, prefix) && p.ImportPath != module+"/"+at && !strings.HasPrefix(p.ImportPath, module+"/"+at+"/") {
					t.Errorf("%s imports %s, which belongs to %s", p.ImportPath, imp, at)
				}
			}
		}
	}
}

func TestExamplesUseOnlyWhatTheirReadersCan(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		if !strings.HasPrefix(p.ImportPath, module+"/examples/") {
			continue
		}
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, module+"/internal/") {
				t.Errorf("%s imports %s", p.ImportPath, imp)
			}
		}
	}
}

// Nothing registers itself: a third party's transport must plug in as ours do.
func TestNoInitFunctions(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		for _, file := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), p.Dir+"/"+file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
					t.Errorf("%s/%s has an init function", p.ImportPath, file)
				}
			}
		}
	}
}
