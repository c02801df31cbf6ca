// Package report asks both databases what became of the events. What it says about losses and order comes from SQL, not from
// counters.
package report

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seambus/seambus/examples/fulfillment/chaos"
)

// Report is the result of a run, as --json prints it.
type Report struct {
	Orders          int64              `json:"orders"`
	Recorded        int64              `json:"recorded"`
	Published       int64              `json:"published"`
	Delivered       int64              `json:"delivered"`
	Applied         int64              `json:"applied"`
	Duplicates      int64              `json:"duplicates"`
	Stale           int64              `json:"stale"`
	ContractBreaks  int64              `json:"contract_breaks"`
	DeadLetters     int64              `json:"dead_letters"`
	Lost            int64              `json:"lost"`
	OrderViolations int64              `json:"order_violations"`
	Chaos           map[chaos.Kind]int `json:"chaos"`
	StateSHA256     string             `json:"state_sha256"`
	EventsPerSecond float64            `json:"events_per_second"`
	CommitToApplied Latency            `json:"commit_to_applied_ms"`

	waiting, wrong int64
}

// Latency is a distribution in milliseconds.
type Latency struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// The kinds of database.
const (
	SQLite   = "sqlite"
	Postgres = "postgres"
	MySQL    = "mysql"
)

// words is what they say differently.
var words = map[string][]string{
	SQLite: {"{order}", "CAST(partition_key AS INTEGER)", "{version}", "CAST(aggregate_version AS INTEGER)",
		"{status}", "json_extract(CAST(payload AS TEXT), '$.status')", "{binary}", ""},
	Postgres: {"{order}", "CAST(partition_key AS bigint)", "{version}", "CAST(aggregate_version AS bigint)",
		"{status}", `CASE WHEN convert_from(payload, 'UTF8') NOT LIKE '%\\u0000%' THEN CAST(convert_from(payload, 'UTF8') AS json) ->> 'status' END`,
		"{binary}", ""},
	MySQL: {"{order}", "CAST(partition_key AS SIGNED)", "{version}", "CAST(aggregate_version AS SIGNED)",
		"{status}", "JSON_VALUE(CONVERT(payload USING utf8mb4), '$.status')", "{binary}", "COLLATE utf8mb4_bin"},
}

// Query fills in what the databases know. Monolith and service are the two files' paths, or the schemas' names: one connection
// sees both.
func (r *Report) Query(ctx context.Context, db *sql.DB, kind, monolith, service string) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	if kind == SQLite {
		if _, err := conn.ExecContext(ctx, `ATTACH DATABASE ? AS service`, service); err != nil {
			return fmt.Errorf("report: attach %s: %w", service, err)
		}
		monolith, service = "main", "service"
	}
	said := strings.NewReplacer(append(words[kind], "main.", monolith+".", "service.", service+".")...)
	for _, q := range []struct {
		into *int64
		sql  string
	}{
		{&r.Orders, `SELECT count(*) FROM service.fulfillment_orders`},
		{&r.Recorded, `SELECT count(*) FROM main.seambus_outbox WHERE topic = 'orders'`},
		{&r.Published, `SELECT count(*) FROM main.seambus_outbox WHERE topic = 'orders' AND state = 3`},
		{&r.waiting, `SELECT count(*) FROM main.seambus_outbox WHERE topic = 'orders' AND state <> 3`},
		{&r.Applied, `SELECT count(*) FROM ` + applied + ` AND i.stale = 0`},
		{&r.ContractBreaks, `SELECT (SELECT count(*) FROM main.seambus_parked WHERE class = 'contract')
  + (SELECT count(*) FROM service.seambus_parked WHERE class = 'contract')`},
		{&r.DeadLetters, `SELECT (SELECT count(*) FROM main.seambus_parked) + (SELECT count(*) FROM service.seambus_parked)`},
		{&r.Lost, lost},
		{&r.OrderViolations, violations},
		{&r.wrong, wrongState},
	} {
		if err := conn.QueryRowContext(ctx, said.Replace(q.sql)).Scan(q.into); err != nil {
			return fmt.Errorf("report: %w in %s", err, q.sql)
		}
	}
	r.StateSHA256, err = state(ctx, conn, said)
	return err
}

const (
	// applied joins what the service has handled with what the monolith has recorded.
	applied = `service.seambus_inbox i JOIN main.seambus_outbox o ON o.event_id = i.event_id AND o.source = i.source
WHERE i.grp = 'fulfillment' AND o.topic = 'orders'`

	// lost: published, and neither handled nor among the dead letters.
	lost = `SELECT count(*) FROM main.seambus_outbox o WHERE o.topic = 'orders' AND o.state = 3
  AND NOT EXISTS (SELECT 1 FROM service.seambus_inbox i
    WHERE i.grp = 'fulfillment' AND i.source = o.source AND i.event_id = o.event_id)
  AND NOT EXISTS (SELECT 1 FROM service.seambus_parked p
    WHERE p.grp = 'fulfillment' AND p.source = o.source AND p.event_id = o.event_id)`

	// violations: an event that was handled after a later one of its order. One that was given up, sent once more by a relay that
	// had died before it could mark, and then refused as stale, is none: it had its turn before, as a dead letter.
	violations = `SELECT count(*) FROM (
  SELECT o.seq AS seq, lag(o.seq) OVER (PARTITION BY o.partition_key ORDER BY i.seq) AS earlier FROM ` + applied + `
  AND NOT (i.stale = 1 AND EXISTS (SELECT 1 FROM service.seambus_parked p
    WHERE p.grp = i.grp AND p.source = i.source AND p.event_id = i.event_id))
) AS handled WHERE earlier > seq`

	// wrongState: orders whose row is not what the newest of the monolith's events that keep the contract says.
	wrongState = `WITH told AS (
  SELECT {order} AS order_id, {version} AS version, {status} AS status
  FROM main.seambus_outbox WHERE topic = 'orders' AND state = 3),
newest AS (
  SELECT order_id, status, version, row_number() OVER (PARTITION BY order_id ORDER BY version DESC) AS n
  FROM told WHERE status IN ('preparing', 'ready', 'picked_up', 'delivered'))
SELECT count(*) FROM newest w LEFT JOIN service.fulfillment_orders f ON f.order_id = w.order_id
WHERE w.n = 1 AND (f.order_id IS NULL OR f.status <> w.status {binary} OR f.version <> w.version)`
)

// state hashes the service's orders.
func state(ctx context.Context, conn *sql.Conn, said *strings.Replacer) (sum string, err error) {
	rows, err := conn.QueryContext(ctx, said.Replace(`SELECT order_id, status, version FROM service.fulfillment_orders ORDER BY order_id`))
	if err != nil {
		return "", fmt.Errorf("report: state: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	h := sha256.New()
	for rows.Next() {
		var order, version int64
		var status string
		if err := rows.Scan(&order, &status, &version); err != nil {
			return "", fmt.Errorf("report: state: %w", err)
		}
		fmt.Fprintf(h, "%d,%s,%d\n", order, status, version)
	}
	return hex.EncodeToString(h.Sum(nil)), rows.Err()
}

// Broken returns the promises that did not hold.
func (r *Report) Broken() []string {
	var broken []string
	for what, n := range map[string]int64{
		"events lost": r.Lost, "events out of order": r.OrderViolations, "events not published": r.waiting,
		"orders whose state is wrong": r.wrong,
	} {
		if n != 0 {
			broken = append(broken, fmt.Sprintf("%d %s", n, what))
		}
	}
	for kind, n := range r.Chaos {
		if n == 0 && r.Delivered > 0 { // a run that finds everything done has nothing to disturb
			broken = append(broken, fmt.Sprintf("chaos.%s never happened", kind))
		}
	}
	slices.Sort(broken)
	return broken
}

// String is the report for people.
func (r *Report) String() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("orders %d · recorded %d · published %d · delivered %d · applied %d", r.Orders, r.Recorded, r.Published, r.Delivered, r.Applied)
	line("duplicates %d · stale %d · contract breaks %d · dead letters %d", r.Duplicates, r.Stale, r.ContractBreaks, r.DeadLetters)
	line("lost %d · out of order %d", r.Lost, r.OrderViolations)
	if len(r.Chaos) > 0 {
		b.WriteString("chaos")
		for i, k := range chaos.Kinds() {
			sep := " ·"
			if i == 0 {
				sep = ":"
			}
			fmt.Fprintf(&b, "%s %s %d", sep, k, r.Chaos[k])
		}
		b.WriteByte('\n')
	}
	line("%.0f events/s · commit to applied p50 %.1f ms, p99 %.1f ms", r.EventsPerSecond, r.CommitToApplied.P50, r.CommitToApplied.P99)
	line("state %s", r.StateSHA256)
	if broken := r.Broken(); len(broken) > 0 {
		line("BROKEN: %s", strings.Join(broken, "; "))
	} else {
		line("every promise held")
	}
	return b.String()
}

// Latencies turns samples into percentiles.
func Latencies(samples []time.Duration) Latency {
	if len(samples) == 0 {
		return Latency{}
	}
	slices.Sort(samples)
	at := func(p float64) float64 {
		return float64(samples[int(p*float64(len(samples)-1))].Microseconds()) / 1000
	}
	return Latency{P50: at(0.50), P99: at(0.99)}
}
