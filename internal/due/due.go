// Package due keeps items in the order in which they are due.
package due

import (
	"container/heap"
	"time"
)

// Slot is an item's place in a [Queue]. An item embeds it; the zero value is in none.
type Slot struct {
	at    time.Time
	place int // counted from 1
}

// Due returns when the item is due, or was when it left the queue.
func (s *Slot) Due() time.Time { return s.at }

func (s *Slot) slot() *Slot { return s }

// Item is a pointer to what embeds a [Slot].
type Item interface{ slot() *Slot }

// Queue has the item that is due first at its head. The zero value is empty.
type Queue[T Item] struct{ items order[T] }

// Len returns the number of items.
func (q *Queue[T]) Len() int { return len(q.items) }

// Head returns the item that is due first. The queue must not be empty.
func (q *Queue[T]) Head() T { return q.items[0] }

// Items returns all, the head first and the others in no order. The slice is the
// queue's own and is good until the next change.
func (q *Queue[T]) Items() []T { return q.items }

// Plan puts item in, or moves it, and reports whether it is at the head now.
func (q *Queue[T]) Plan(item T, at time.Time) (head bool) {
	s := item.slot()
	s.at = at
	if s.place > 0 {
		heap.Fix(&q.items, s.place-1)
	} else {
		heap.Push(&q.items, item)
	}
	return s.place == 1
}

// Remove takes item out and reports whether it was in.
func (q *Queue[T]) Remove(item T) bool {
	s := item.slot()
	if s.place == 0 {
		return false
	}
	heap.Remove(&q.items, s.place-1)
	return true
}

type order[T Item] []T

func (o order[T]) Len() int           { return len(o) }
func (o order[T]) Less(i, j int) bool { return o[i].slot().at.Before(o[j].slot().at) }

func (o order[T]) Swap(i, j int) {
	o[i], o[j] = o[j], o[i]
	o[i].slot().place, o[j].slot().place = i+1, j+1
}

func (o *order[T]) Push(x any) {
	item := x.(T)
	*o = append(*o, item)
	item.slot().place = len(*o)
}

func (o *order[T]) Pop() any {
	n := len(*o) - 1
	item := (*o)[n]
	clear((*o)[n:])
	*o = (*o)[:n]
	item.slot().place = 0
	return item
}
