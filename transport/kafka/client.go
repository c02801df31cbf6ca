package kafka

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/seambus/seambus/transport"
)

const (
	dialTimeout = 5 * time.Second
	// requestTimeout bounds an administrative request, resending included.
	requestTimeout = 10 * time.Second
	// fetchWait is how long a broker may wait for something to send, and a resumed partition for its turn.
	fetchWait = 500 * time.Millisecond
	// fetchBytes bounds what lies fetched and not yet taken, of all partitions of a broker together.
	fetchBytes          = 8 << 20
	fetchPartitionBytes = 1 << 20
)

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// common is what every client of the transport is made with.
func (c *config) common() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.brokers...),
		kgo.ClientID(c.clientID),
		kgo.WithLogger(clientLogger{c.logger}),
		kgo.RetryTimeout(requestTimeout),
		kgo.DialTimeout(dialTimeout),
		kgo.MetadataMinAge(250 * time.Millisecond),
	}
	if c.sasl != nil {
		opts = append(opts, kgo.SASL(c.sasl))
	}
	if c.versions != nil {
		opts = append(opts, kgo.MaxVersions(c.versions))
	}
	switch {
	case c.dialer != nil:
		opts = append(opts, kgo.Dialer(c.dialer(&net.Dialer{Timeout: dialTimeout})))
	case c.tls != nil:
		opts = append(opts, kgo.DialTLSConfig(c.tls))
	}
	return opts
}

// classify gives a client's error the sentinel that callers branch on. Errors that an operator can mend, such as a missing
// topic or right, get none: neither the message nor the broker is to blame.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded): // which is a net.Error too
		return err
	case errors.Is(err, kgo.ErrClientClosed):
		return errors.Join(transport.ErrClosed, err)
	case errors.Is(err, kerr.InvalidTopicException):
		return errors.Join(transport.ErrRefused, err)
	case unavailable(err):
		return errors.Join(transport.ErrUnavailable, err)
	}
	return err
}

func unavailable(err error) bool {
	if _, isNet := errors.AsType[net.Error](err); isNet {
		return true
	}
	if ke, isKafka := errors.AsType[*kerr.Error](err); isKafka {
		return ke.Retriable && ke != kerr.UnknownTopicOrPartition && ke != kerr.CorruptMessage
	}
	return errors.Is(err, kgo.ErrRecordTimeout) || errors.Is(err, kgo.ErrRecordRetries) || errors.Is(err, net.ErrClosed)
}

// clientLogger passes the client's messages on. What it calls information is of interest only while debugging.
type clientLogger struct{ log *slog.Logger }

func (l clientLogger) Level() kgo.LogLevel {
	switch ctx := context.Background(); {
	case l.log.Enabled(ctx, slog.LevelDebug):
		return kgo.LogLevelInfo
	case l.log.Enabled(ctx, slog.LevelWarn):
		return kgo.LogLevelWarn
	case l.log.Enabled(ctx, slog.LevelError):
		return kgo.LogLevelError
	}
	return kgo.LogLevelNone
}

func (l clientLogger) Log(level kgo.LogLevel, msg string, keyvals ...any) {
	to := slog.LevelDebug
	switch level {
	case kgo.LogLevelError:
		to = slog.LevelError
	case kgo.LogLevelWarn:
		to = slog.LevelWarn
	case kgo.LogLevelNone, kgo.LogLevelInfo, kgo.LogLevelDebug:
	}
	l.log.Log(context.Background(), to, "kafka: "+msg, keyvals...)
}
