package kafka_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/kafka"
)

// wants fails the test unless err names everything.
func wants(t *testing.T, err error, names ...string) {
	t.Helper()
	for _, n := range names {
		if err == nil || !strings.Contains(err.Error(), n) {
			t.Errorf("error does not name %q: %v", n, err)
		}
	}
}

func TestOptionsAreCheckedTogether(t *testing.T) {
	t.Parallel()
	_, err := kafka.New(t.Context(), []string{"nowhere"}, kafka.WithMaxMessageBytes(1), kafka.WithProtocolVersion("old"),
		kafka.WithSessionTimeout(-1), kafka.WithMaxWaiting(0), kafka.WithCommitInterval(0))
	wants(t, err, `"nowhere"`, "max message bytes is 1", `"old"`, "session timeout is -1ns", "max waiting is 0", "commit interval is 0s")
}

func TestUnreachableBrokersAreNamed(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err = kafka.New(ctx, []string{address})
	wants(t, err, address, transport.ErrUnavailable.Error())
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	c := secured(t)
	if real := os.Getenv("SEAMBUS_TEST_KAFKA_SASL_BROKERS"); real != "" {
		c = &cluster{brokers: strings.Split(real, ",")}
	}
	for name, with := range map[string]func(string, string) kafka.Option{
		"PLAIN": kafka.WithPlain, "SCRAM-SHA-256": kafka.WithSCRAM256, "SCRAM-SHA-512": kafka.WithSCRAM512,
	} {
		tr, err := kafka.New(t.Context(), c.brokers, with("admin", "secret"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		tr.Close()
		_, err = kafka.New(t.Context(), c.brokers, with("admin", "wrong"))
		wants(t, err, c.brokers[0], "refuse the credentials")
		if err != nil && strings.Contains(err.Error(), "wrong") {
			t.Errorf("%s: the error tells the password: %v", name, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err := kafka.New(ctx, c.brokers)
	wants(t, err, c.brokers[0])
}

// secured is a cluster with users: admin, and reader who may see and nothing else.
func secured(t *testing.T) *cluster {
	t.Helper()
	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.EnableACLs(), kfake.SeedTopics(1, "orders"),
		kfake.Superuser("PLAIN", "admin", "secret"), kfake.Superuser("SCRAM-SHA-256", "admin", "secret"),
		kfake.Superuser("SCRAM-SHA-512", "admin", "secret"),
		kfake.User("PLAIN", "clerk", "secret", kfake.ACL{
			Resource: kmsg.ACLResourceTypeTopic, Name: "orders", Pattern: kmsg.ACLResourcePatternTypeLiteral,
			Operation: kmsg.ACLOperationDescribe, Allow: true,
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	return &cluster{brokers: fake.ListenAddrs(), fake: fake}
}

func TestMissingRightsAreNamedAtStart(t *testing.T) {
	t.Parallel()
	c := secured(t)
	_, err := kafka.New(t.Context(), c.brokers, kafka.WithPlain("clerk", "secret"), kafka.WithRequiredTopics("orders"))
	wants(t, err, `"orders"`, "write")
	tr, err := kafka.New(t.Context(), c.brokers, kafka.WithPlain("clerk", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	sub, err := tr.Subscriber(transport.SubscriberConfig{Group: "billing"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = sub.Subscribe(t.Context(), "orders")
	wants(t, err, `"orders"`, `"billing"`, "read", "GROUP_AUTHORIZATION_FAILED")
	err = tr.Publisher().Publish("orders", keyed("k", "1"))
	wants(t, err, "AUTHORIZATION_FAILED")
	if transport.Permanent(err) {
		t.Errorf("a right that can be given is not a reason to give a message up: %v", err)
	}
}

func TestMissingTopicsAreNamedAndNotCreated(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	_, err := kafka.New(t.Context(), c.brokers, kafka.WithRequiredTopics("no-such-topic", "nor-this"))
	wants(t, err, `"no-such-topic"`, `"nor-this"`, "WithTopicCreation")
	tr := c.open(t)
	sub, err := tr.Subscriber(transport.SubscriberConfig{Group: "g"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = sub.Subscribe(t.Context(), "no-such-topic")
	wants(t, err, `"no-such-topic"`, `"g"`, "WithTopicCreation")
	err = tr.Publisher().Publish("no-such-topic", keyed("k", "1"))
	wants(t, err, `"no-such-topic"`, "WithTopicCreation")
	details, err := c.admin.ListTopics(t.Context())
	if err != nil || details.Has("no-such-topic") || details.Has("nor-this") {
		t.Errorf("a topic was created: %v", err)
	}
}

func TestTopicsAreCreatedAsConfigured(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	name := "created-" + time.Now().Format("150405.000000")
	tr := c.open(t, kafka.WithTopicCreation(kafka.TopicConfig{Partitions: 3, Replication: 1, Retention: time.Hour}),
		kafka.WithRequiredTopics(name))
	publish(t, tr, name, keyed("k", "1"))
	details, err := c.admin.ListTopics(t.Context(), name)
	if err != nil || len(details[name].Partitions) != 3 {
		t.Errorf("%d partitions, want 3 (%v)", len(details[name].Partitions), err)
	}
	configs, err := c.admin.DescribeTopicConfigs(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	for _, cfg := range configs[0].Configs {
		if cfg.Key == "retention.ms" && cfg.MaybeValue() != "3600000" {
			t.Errorf("retention is %s ms, want an hour", cfg.MaybeValue())
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	server, client := certificates(t)
	fake, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(server), kfake.SeedTopics(1, "orders"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fake.Close)
	tr, err := kafka.New(t.Context(), fake.ListenAddrs(), kafka.WithTLS(client), kafka.WithProtocolVersion("3.6"))
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	publish(t, tr, "orders", keyed("k", "1"))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	_, err = kafka.New(ctx, fake.ListenAddrs(), kafka.WithTLS(nil)) // which does not trust the certificate
	wants(t, err, fake.ListenAddrs()[0], "certificate")
}

func certificates(t *testing.T) (server, client *tls.Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}, &tls.Config{RootCAs: pool}
}
