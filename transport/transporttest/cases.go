package transporttest

// Cases returns the suite.
func Cases() []Case {
	return []Case{
		{Name: "the harness declares what the transport says of itself", run: declared},
		{Name: "bytes and headers arrive unchanged", Needs: Bytes, run: bytesUnchanged},
		{Name: "the largest message arrives and a larger one is refused by name", Needs: Limits, run: limitsRefused},
		{Name: "a delivery says where it came from", run: deliverySaysWhere},
		{Name: "order per key under 16 publishers", run: orderUnderPublishers},
		{Name: "a key is delivered one at a time", run: oneAtATime},
		{Name: "keys are in flight at once", run: keysAtOnce},
		{Name: "concurrency is bounded", run: boundedConcurrency},
		{Name: "a nack redelivers before the later events of its key while others go on", run: nackRedelivers},
		{Name: "a nack waits for its delay", Needs: Delay, run: nackWaits},
		{Name: "deliveries are counted", Needs: Deliveries, run: deliveriesCounted},
		{Name: "a lease outlasts a long handler", run: leaseOutlasts},
		{Name: "a lost lease cancels the handler and ignores its ack", Needs: Leases, run: leaseLost},
		{Name: "every group gets everything", run: everyGroup},
		{Name: "members of a group share", run: membersShare},
		{Name: "a member that leaves is taken over", run: takenOver},
		{Name: "a crashed member's messages come back", Needs: Crash, run: crashed},
		{Name: "drain lets handlers finish and takes nothing in", run: drainFinishes},
		{Name: "drain past its deadline hands back what is left", run: drainCutsOff},
		{Name: "a failed publish names what failed and nothing later of its key is sent", Needs: Limits, run: publishNames},
		{Name: "a publish whose context has ended is refused", run: publishEnded},
		{Name: "settled means acknowledged by every group", Needs: Settled, run: settled},
		{Name: "close is idempotent, concurrent and works before subscribing", run: closes},
		{Name: "a subscription ends with its context", run: endsWithContext},
		{Name: "nothing is lost when the broker comes back", Needs: Restart, run: restarted},
		{Name: "what failed before is not repeated for ever", run: notForEver},
		{Name: "the failure script leaves the same trace as everywhere", run: script},
	}
}
