package seambus
import (
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/google/wire"
	_ "github.com/schollz/progressbar/v3"
	_ "go.opentelemetry.io/otel/sdk/trace"
	_ "go.opentelemetry.io/otel/sdk/trace/tracetest"
	_ "go.uber.org/goleak"
	_ "modernc.org/sqlite"
	_ "pgregory.net/rapid"
	_ "github.com/ThreeDotsLabs/watermill/pubsub/tests"
)
