package kafka

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kversion"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// Defaults of [New].
const (
	// DefaultMaxMessageBytes is the largest message, payload and metadata: what fits a broker's own default of 1,048,588
	// bytes with room for what a record adds.
	DefaultMaxMessageBytes = 1_000_000
	// DefaultSessionTimeout is how long the group waits for a member that has vanished.
	DefaultSessionTimeout = 45 * time.Second
	// DefaultCommitInterval is how often watermarks are committed.
	DefaultCommitInterval = time.Second
	// DefaultRevokeGrace is how long handlers of a revoked partition may take to settle.
	DefaultRevokeGrace = 5 * time.Second
	// DefaultDeliveryTimeout is how long a message may wait for the broker's acknowledgement.
	DefaultDeliveryTimeout = 30 * time.Second
	// DefaultMaxWaiting is how many messages a partition may hold.
	DefaultMaxWaiting = 1_000
	// DefaultMaxGap is how far a partition may get ahead of its oldest unfinished message.
	DefaultMaxGap = 10_000
)

// batchRoom is what a record may add to the message it carries: its key once more, the id, lengths, the batch's own header.
const batchRoom = 48_588

// Option configures a [Transport].
type Option interface{ apply(*config) }

type option func(*config)

func (o option) apply(c *config) { o(c) }

// TopicConfig describes topics that the transport may create.
type TopicConfig struct {
	// Partitions is the number of partitions. Zero means the broker's default.
	Partitions int32
	// Replication is the number of replicas. Zero means the broker's default.
	Replication int16
	// Retention is how long records are kept, in milliseconds on the broker. Zero means the broker's default, negative for
	// ever.
	Retention time.Duration
}

type config struct {
	brokers  []string
	clientID string
	instance string
	tls      *tls.Config
	sasl     sasl.Mechanism
	version  string
	versions *kversion.Versions
	logger   *slog.Logger
	create   *TopicConfig
	required []string
	dialer   func(*net.Dialer) dialFunc // tests cut connections here

	maxBytes        int
	session         time.Duration
	commit          time.Duration
	grace           time.Duration
	deliveryTimeout time.Duration
	maxWaiting      int
	maxGap          int
}

func defaults(brokers []string) *config {
	return &config{
		brokers: brokers, clientID: "seambus", logger: slog.New(slog.DiscardHandler),
		maxBytes: DefaultMaxMessageBytes, session: DefaultSessionTimeout, commit: DefaultCommitInterval,
		grace: DefaultRevokeGrace, deliveryTimeout: DefaultDeliveryTimeout,
		maxWaiting: DefaultMaxWaiting, maxGap: DefaultMaxGap,
	}
}

// WithTLS connects by TLS with c; nil means an empty configuration, which trusts the system's authorities. The default is a
// plain connection.
func WithTLS(c *tls.Config) Option {
	if c == nil {
		c = new(tls.Config)
	}
	return option(func(cfg *config) { cfg.tls = c.Clone() })
}

// WithPlain authenticates by SASL PLAIN. Passwords travel in the clear unless [WithTLS] is given too.
func WithPlain(user, password string) Option {
	return option(func(c *config) { c.sasl = plain.Auth{User: user, Pass: password}.AsMechanism() })
}

// WithSCRAM256 authenticates by SASL SCRAM-SHA-256.
func WithSCRAM256(user, password string) Option {
	return option(func(c *config) { c.sasl = scram.Auth{User: user, Pass: password}.AsSha256Mechanism() })
}

// WithSCRAM512 authenticates by SASL SCRAM-SHA-512.
func WithSCRAM512(user, password string) Option {
	return option(func(c *config) { c.sasl = scram.Auth{User: user, Pass: password}.AsSha512Mechanism() })
}

// WithProtocolVersion bounds the protocol to that of a Kafka release, as in "2.8". The default is to agree with each broker
// on the newest that both know, which is right unless something between them does not know it.
func WithProtocolVersion(release string) Option {
	return option(func(c *config) { c.version = release })
}

// WithClientID names this process in the broker's logs and quotas; the default is "seambus".
func WithClientID(id string) Option { return option(func(c *config) { c.clientID = id }) }

// WithInstanceID makes this process a static member of its groups: restarted within the session timeout it gets its
// partitions back without a rebalance, and until then nobody else gets them. The id must be unique within each group and the
// same after a restart. The default is none.
func WithInstanceID(id string) Option { return option(func(c *config) { c.instance = id }) }

// WithLogger sets where connection trouble, rebalances and failed commits are told. The default is silence. Payloads are
// never logged.
func WithLogger(l *slog.Logger) Option {
	return option(func(c *config) {
		if l != nil {
			c.logger = l
		}
	})
}

// WithTopicCreation creates topics that are missing when they are first published or subscribed to. The default is to
// create nothing: a missing topic is an error that names it.
func WithTopicCreation(t TopicConfig) Option { return option(func(c *config) { c.create = &t }) }

// WithRequiredTopics makes [New] fail unless every topic exists, or may be created, and may be written to: for the topics,
// dead-letter topics included, that this process publishes to. Those it subscribes to are checked by Subscribe.
func WithRequiredTopics(topics ...string) Option {
	return option(func(c *config) { c.required = append(c.required, topics...) })
}

// WithMaxMessageBytes sets the largest message, payload and metadata in bytes; the default is [DefaultMaxMessageBytes].
// Topics need a max.message.bytes of 48,588 bytes more. A topic's own lower limit is found and enforced too.
func WithMaxMessageBytes(n int) Option { return option(func(c *config) { c.maxBytes = n }) }

// WithSessionTimeout sets how long the group waits for a member that has vanished, at least the broker's minimum (6 seconds
// by default); the default is [DefaultSessionTimeout]. Shorter finds crashes sooner and takes more pauses for crashes.
func WithSessionTimeout(d time.Duration) Option { return option(func(c *config) { c.session = d }) }

// WithCommitInterval sets how often watermarks are committed; the default is [DefaultCommitInterval]. A crash repeats what
// was finished since; a revocation or shutdown commits at once and repeats nothing that was settled.
func WithCommitInterval(d time.Duration) Option { return option(func(c *config) { c.commit = d }) }

// WithRevokeGrace sets how long handlers of a revoked partition may take to settle after their contexts were cancelled; the
// default is [DefaultRevokeGrace], zero waits for nobody. Until they have, no other member gets the partition, so two
// handlers of one key do not run at once; the rest of the rebalance waits too. It must stay well below a minute, after which
// the group goes on without this member.
func WithRevokeGrace(d time.Duration) Option { return option(func(c *config) { c.grace = d }) }

// WithDeliveryTimeout sets how long a message may wait for the broker's acknowledgement, through all resending, before Publish
// reports it as failed; the default is [DefaultDeliveryTimeout]. The message's context may end the wait sooner, and the
// message may yet arrive.
func WithDeliveryTimeout(d time.Duration) Option {
	return option(func(c *config) { c.deliveryTimeout = d })
}

// WithMaxWaiting sets how many messages a partition may hold in this process, waiting behind failing keys or in flight,
// before it pauses; the default is [DefaultMaxWaiting]. One fetch may exceed it by as many again.
func WithMaxWaiting(n int) Option { return option(func(c *config) { c.maxWaiting = n }) }

// WithMaxGap sets how many messages a partition may get ahead of its oldest unfinished one before it pauses; the default is
// [DefaultMaxGap]. It bounds what a crash repeats.
func WithMaxGap(n int) Option { return option(func(c *config) { c.maxGap = n }) }

// validate reports every problem at once.
func (c *config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(c.brokers) == 0 {
		bad("brokers is empty, want at least one host:port")
	}
	for _, b := range c.brokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			bad("broker %q is not host:port: %w", b, err)
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
		least time.Duration
	}{
		{"session timeout", c.session, 100 * time.Millisecond},
		{"commit interval", c.commit, time.Millisecond},
		{"revoke grace", c.grace, 0},
		{"delivery timeout", c.deliveryTimeout, time.Second},
	} {
		if d.value < d.least || d.value > time.Hour {
			bad("%s is %v, want %v to 1h", d.name, d.value, d.least)
		}
	}
	if c.maxBytes < 1_000 || c.maxBytes > 1<<28 {
		bad("max message bytes is %d, want 1000 to %d", c.maxBytes, 1<<28)
	}
	if c.maxWaiting < 1 || c.maxGap < 1 {
		bad("max waiting is %d and max gap is %d, want at least 1", c.maxWaiting, c.maxGap)
	}
	if c.version != "" {
		if c.versions = kversion.FromString("v" + strings.TrimPrefix(c.version, "v")); c.versions == nil {
			bad("protocol version %q is not a Kafka release, as in \"2.8\"", c.version)
		}
	}
	return errors.Join(errs...)
}
