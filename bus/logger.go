package bus

import (
	"context"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
)

// routerLogger passes the router's messages on. A handler's error is not the router's: it is retried or dead-lettered, so
// it is a warning here; what the router finds worth an info is debugging to a user of the bus.
type routerLogger struct {
	log    *slog.Logger
	fields watermill.LogFields
}

func newRouterLogger(l *slog.Logger) routerLogger { return routerLogger{log: l} }

func (l routerLogger) Error(msg string, err error, fields watermill.LogFields) {
	l.emit(slog.LevelWarn, msg, fields, slog.Any("error", err))
}

func (l routerLogger) Info(msg string, fields watermill.LogFields) {
	l.emit(slog.LevelDebug, msg, fields)
}

func (l routerLogger) Debug(msg string, fields watermill.LogFields) {
	l.emit(slog.LevelDebug, msg, fields)
}

// Trace is dropped: it is per message and may carry payloads.
func (routerLogger) Trace(string, watermill.LogFields) {}

func (l routerLogger) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return routerLogger{log: l.log, fields: l.fields.Add(fields)}
}

func (l routerLogger) emit(level slog.Level, msg string, fields watermill.LogFields, attrs ...slog.Attr) {
	ctx := context.Background()
	if !l.log.Enabled(ctx, level) {
		return
	}
	for _, fs := range []watermill.LogFields{l.fields, fields} {
		for k, v := range fs {
			attrs = append(attrs, slog.Any(k, v))
		}
	}
	l.log.LogAttrs(ctx, level, "router: "+msg, attrs...)
}
