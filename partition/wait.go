package partition

import "time"

// queue is a FIFO of lanes, linked through them.
type queue[T any] struct{ head, tail *lane[T] }

func (q *queue[T]) push(ln *lane[T]) {
	ln.next = nil
	if q.tail == nil {
		q.head, q.tail = ln, ln
		return
	}
	q.tail.next = ln
	q.tail = ln
}

func (q *queue[T]) pop() *lane[T] {
	ln := q.head
	if ln == nil {
		return nil
	}
	if q.head = ln.next; q.head == nil {
		q.tail = nil
	}
	ln.next = nil
	return ln
}

// delayHeap orders lanes by the time they are due.
type delayHeap[T any] struct{ lanes []*lane[T] }

func (h *delayHeap[T]) push(ln *lane[T]) {
	h.lanes = append(h.lanes, ln)
	for i := len(h.lanes) - 1; i > 0; {
		parent := (i - 1) / 2
		if !h.less(i, parent) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h *delayHeap[T]) pop() *lane[T] {
	last := len(h.lanes) - 1
	h.swap(0, last)
	ln := h.lanes[last]
	h.lanes[last] = nil
	h.lanes = h.lanes[:last]
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if h.less(child, least) {
				least = child
			}
		}
		if least == i {
			return ln
		}
		h.swap(i, least)
		i = least
	}
}

func (h *delayHeap[T]) less(i, j int) bool { return h.lanes[i].notBefore.Before(h.lanes[j].notBefore) }
func (h *delayHeap[T]) swap(i, j int)      { h.lanes[i], h.lanes[j] = h.lanes[j], h.lanes[i] }

// arm sets the timer for the lane that is due first.
func (l *Lanes[T]) arm() {
	if len(l.delayed.lanes) == 0 || l.closed {
		return
	}
	wait := time.Until(l.delayed.lanes[0].notBefore)
	if l.timer == nil {
		l.timer = time.AfterFunc(wait, l.due)
		return
	}
	l.timer.Reset(wait)
}

// due makes ready whatever is due.
func (l *Lanes[T]) due() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for len(l.delayed.lanes) > 0 && !l.delayed.lanes[0].notBefore.After(now) {
		l.makeReady(l.delayed.pop())
	}
	l.arm()
}

// waiter is one blocked call.
type waiter struct{ woken chan struct{} }

// waiters is a FIFO of blocked calls. Its methods need the lanes' lock.
type waiters struct{ waiting, spare []*waiter }

func (ws *waiters) join() *waiter {
	var w *waiter
	if n := len(ws.spare); n > 0 {
		w, ws.spare = ws.spare[n-1], ws.spare[:n-1]
	} else {
		w = &waiter{woken: make(chan struct{}, 1)}
	}
	ws.waiting = append(ws.waiting, w)
	return w
}

// leave gives back a waiter that was woken.
func (ws *waiters) leave(w *waiter) {
	if len(ws.spare) < maxFree {
		ws.spare = append(ws.spare, w)
	}
}

func (ws *waiters) wake() {
	if len(ws.waiting) == 0 {
		return
	}
	w := ws.waiting[0]
	ws.waiting = ws.waiting[1:]
	w.woken <- struct{}{}
}

func (ws *waiters) wakeAll() {
	for len(ws.waiting) > 0 {
		ws.wake()
	}
}

// remove reports false if w is not waiting any more.
func (ws *waiters) remove(w *waiter) bool {
	for i, x := range ws.waiting {
		if x == w {
			ws.waiting = append(ws.waiting[:i], ws.waiting[i+1:]...)
			return true
		}
	}
	return false
}
