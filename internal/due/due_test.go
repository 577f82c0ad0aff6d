package due_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/aetomala/worklease/internal/due"
)

type item struct{ due.Slot }

// Whatever is planned, moved and removed, the head is the earliest of what is in.
func TestQueue(t *testing.T) {
	t.Parallel()
	epoch := time.Unix(0, 0)
	random := rand.New(rand.NewPCG(1, 2))
	var q due.Queue[*item]
	items := make([]*item, 30)
	for i := range items {
		items[i] = new(item)
	}
	in := map[*item]time.Time{}
	for range 10_000 {
		x := items[random.IntN(len(items))]
		_, was := in[x]
		if random.IntN(3) == 0 {
			delete(in, x)
			if removed := q.Remove(x); removed != was {
				t.Fatalf("Remove = %v, want %v", removed, was)
			}
		} else {
			at := epoch.Add(time.Duration(random.IntN(100)) * time.Second)
			in[x] = at
			if head := q.Plan(x, at); head != (q.Head() == x) || x.Due() != at {
				t.Fatalf("Plan = %v for %v, planned for %v", head, x.Due(), at)
			}
		}
		if q.Len() != len(in) || len(q.Items()) != len(in) {
			t.Fatalf("%d items, want %d", q.Len(), len(in))
		}
		if len(in) == 0 {
			continue
		}
		earliest := q.Head().Due()
		for _, x := range q.Items() {
			at, ok := in[x]
			if !ok || !x.Due().Equal(at) || at.Before(earliest) {
				t.Fatalf("an item that is in (%v) for %v, the head is for %v", ok, at, earliest)
			}
		}
		if q.Items()[0] != q.Head() || !slices.Contains(q.Items(), q.Head()) {
			t.Fatal("the head is not the first item")
		}
	}
}
