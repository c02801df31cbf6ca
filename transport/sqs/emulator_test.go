package sqs_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	awssns "github.com/aws/aws-sdk-go-v2/service/sns"
	awssqs "github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/seambus/seambus/transport"
	"github.com/seambus/seambus/transport/sqs"
	"github.com/seambus/seambus/transport/transporttest"
)

// endpointVariable names servers to test against: name=URL, by commas.
const endpointVariable = "SEAMBUS_TEST_SQS_ENDPOINT"

// moto hands one group's messages to two receives at once if they come at the same moment, so that a subscription has one
// receiver there; and it answers 500 to a receive of what SNS delivered with a binary attribute. See docs/sqs.md.
const moto = "moto"

// emulators returns the URLs of the servers by name, or skips the test.
func emulators(tb testing.TB) map[string]string {
	tb.Helper()
	list := os.Getenv(endpointVariable)
	if list == "" {
		tb.Skipf("set %s to name=URL of an SQS and SNS server; scripts/services-sqs up starts two, scripts/services-sqs env says where", endpointVariable)
	}
	servers := make(map[string]string)
	for server := range strings.SplitSeq(list, ",") {
		name, endpoint, ok := strings.Cut(server, "=")
		if !ok {
			tb.Fatalf("%s has %q, want name=URL", endpointVariable, server)
		}
		servers[name] = endpoint
	}
	return servers
}

// onEmulators runs a test against each server.
func onEmulators(t *testing.T, test func(t *testing.T, name string, cfg aws.Config)) {
	t.Helper()
	for name, endpoint := range emulators(t) {
		t.Run(name, func(t *testing.T) {
			connections := &http.Transport{MaxIdleConnsPerHost: 64}
			t.Cleanup(connections.CloseIdleConnections)
			test(t, name, emulatorConfig(endpoint, &http.Client{Transport: connections}))
		})
	}
}

func emulatorConfig(endpoint string, client *http.Client) aws.Config {
	return aws.Config{
		HTTPClient: client, Region: "us-east-1", BaseEndpoint: &endpoint,
		Credentials: credentials.NewStaticCredentialsProvider("test", "test", ""),
	}
}

var serial atomic.Int64

// fresh makes a topic that no earlier run has used.
func fresh() string { return fmt.Sprintf("t%x-%d", time.Now().UnixMilli()&0xffffffff, serial.Add(1)) }

func emulatorOptions(name string) []sqs.Option {
	opts := []sqs.Option{sqs.WithCreate(), sqs.WithLease(3 * time.Second), sqs.WithLongPoll(time.Second)}
	if name == moto {
		opts = append(opts, sqs.WithReceivers(1))
	}
	return opts
}

func TestConformanceOnEmulatorsBehindSNS(t *testing.T) {
	onEmulators(t, func(t *testing.T, name string, cfg aws.Config) {
		h := emulated()
		if name == moto {
			const fault = "moto answers 500 to a receive of what SNS delivered with a binary attribute"
			h.Faults = map[string]string{
				"bytes and headers arrive unchanged":                     fault,
				"the failure script leaves the same trace as everywhere": fault, // its dead letters have many headers
			}
		}
		h.Open = func(context.Context, transport.Transport) (transport.Transport, error) {
			return sqs.New(awssqs.NewFromConfig(cfg), append(emulatorOptions(name), sqs.WithFanout(awssns.NewFromConfig(cfg)))...)
		}
		transporttest.Run(t, h)
	})
}

func TestConformanceOnEmulatorsStraight(t *testing.T) {
	onEmulators(t, func(t *testing.T, name string, cfg aws.Config) {
		h := emulated()
		h.Open = func(context.Context, transport.Transport) (transport.Transport, error) {
			return newStraight(awssqs.NewFromConfig(cfg), emulatorOptions(name)...)
		}
		transporttest.Run(t, h)
	})
}

func emulated() transporttest.Harness {
	return transporttest.Harness{
		Patience: 2 * time.Minute, // moto looks once a second for a group that has become free
		Declares: []transporttest.Feature{
			transporttest.Bytes, transporttest.Delay, transporttest.Deliveries, transporttest.Crash, transporttest.Limits,
		},
		Topic: func(context.Context) (string, error) { return fresh(), nil },
		Crash: func(t transport.Transport, group string) error {
			sqs.Crash(base(t), group)
			return nil
		},
	}
}
