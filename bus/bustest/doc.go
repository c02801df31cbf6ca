// Package bustest is what a team's own unit tests use: a bus on the memory transport with an outbox and an inbox on SQLite
// in memory, faults on demand, lists of what happened to assert on, and crashes at every point of the path.
//
//	func TestBilling(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			k := bustest.New(t)
//			bus.Handle(k.Bus(), Orders, "billing", charge)
//			k.Start()
//			k.Record(Orders, OrderPlaced{OrderID: 7})
//			k.Settle()
//			k.Handled().Type("order.placed").Key("7").Want(1)
//		})
//	}
//
// Inside a testing/synctest bubble hours of backoff pass in milliseconds; outside of one everything works in real time.
// [EveryCrash] runs a scenario once for each point at which a process may die.
package bustest
