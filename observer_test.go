package worklease_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

// watcher calls what a test wants to see.
type watcher struct {
	worklease.NopObserver
	onAcquire    func(worklease.AcquireEvent)
	onCheckpoint func(worklease.CheckpointEvent)
	onRenew      func(worklease.RenewEvent)
	onRelease    func(worklease.ReleaseEvent)
	onRead       func(worklease.ReadCheckpointEvent)
	onFenced     func(worklease.FencedEvent)
}

func (w *watcher) OnAcquire(_ context.Context, e worklease.AcquireEvent) {
	if w.onAcquire != nil {
		w.onAcquire(e)
	}
}

func (w *watcher) OnCheckpoint(_ context.Context, e worklease.CheckpointEvent) {
	if w.onCheckpoint != nil {
		w.onCheckpoint(e)
	}
}

func (w *watcher) OnRenew(_ context.Context, e worklease.RenewEvent) {
	if w.onRenew != nil {
		w.onRenew(e)
	}
}

func (w *watcher) OnRelease(_ context.Context, e worklease.ReleaseEvent) {
	if w.onRelease != nil {
		w.onRelease(e)
	}
}

func (w *watcher) OnReadCheckpoint(_ context.Context, e worklease.ReadCheckpointEvent) {
	if w.onRead != nil {
		w.onRead(e)
	}
}

func (w *watcher) OnFenced(_ context.Context, e worklease.FencedEvent) {
	if w.onFenced != nil {
		w.onFenced(e)
	}
}

func observed(t *testing.T, b worklease.Backend, o worklease.LeaseObserver) worklease.Lease {
	t.Helper()
	return configured(t, b, worklease.Config{TTL: ttl, HolderID: "a", Observer: o})
}

// O1. One event for one call, with what the caller gets, and the time of the last
// backend call alone.
func TestAcquireEvent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		defer time.Sleep(background)
		var events []worklease.AcquireEvent
		w := newWire(only(opAcquire, delay(time.Second)))
		acquire(t, newLease(t, w, "other"), "work")
		l := observed(t, w, &watcher{onAcquire: func(e worklease.AcquireEvent) { events = append(events, e) }})

		_, refused := l.Acquire(t.Context(), "work")
		began := time.Now()
		token := acquire(t, l, "work", worklease.WithWaitForLease())
		took := time.Since(began)
		_, invalid := l.Acquire(t.Context(), "")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, ended := l.Acquire(ctx, "work", worklease.WithWaitForLease())

		if len(events) != 4 {
			t.Fatalf("%d events for 4 calls", len(events))
		}
		for i, err := range []error{refused, nil, invalid, ended} {
			if e := events[i]; !errors.Is(e.Err, err) || (e.Err != nil) != (e.Token == worklease.Token{}) {
				t.Errorf("event %d has the error %v and the token %v, the caller got %v", i, e.Err, e.Token, err)
			}
		}
		if e := events[0]; e.Duration != time.Second || e.Waited != 0 || e.WorkID != "work" {
			t.Errorf("a refused call: %+v", e)
		}
		if e := events[1]; e.Token != token || e.Duration != time.Second || e.Waited != took-time.Second {
			t.Errorf("a wait of %v: %+v", took, e)
		}
		if e := events[2]; e.Duration != 0 || e.Waited != 0 {
			t.Errorf("a call that sent nothing: %+v", e)
		}
	})
}

// O1. A call that does not wait has not waited, by the real clock too.
func TestWaitedIsForWaiters(t *testing.T) {
	t.Parallel()
	var events []worklease.AcquireEvent
	l, err := worklease.New(memory.New(), worklease.Config{TTL: time.Minute, HolderID: "a", Observer: &watcher{
		onAcquire: func(e worklease.AcquireEvent) { events = append(events, e) },
	}})
	must(t, err)
	for range 2 {
		_, _ = l.Acquire(t.Context(), "work")
	}
	for _, e := range events {
		if e.Waited != 0 {
			t.Errorf("%+v", e)
		}
	}
	if len(events) != 2 {
		t.Errorf("%d events", len(events))
	}
}

// O1. In the caller's goroutine, after the operation, OnFenced second.
func TestEventsComeInOrder(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var told []string
		add := func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
		w := newWire(nil)
		l := observed(t, w, &watcher{
			onCheckpoint: func(e worklease.CheckpointEvent) {
				add("checkpoint %d %v %t", e.Size, e.Duration, errors.Is(e.Err, worklease.ErrFenced))
			},
			onRenew: func(e worklease.RenewEvent) {
				add("renew %d %v %t", e.Attempt, e.Duration, errors.Is(e.Err, worklease.ErrFenced))
			},
			onRelease: func(e worklease.ReleaseEvent) {
				add("release %v %v %t", e.Exit, e.Duration, errors.Is(e.Err, worklease.ErrFenced))
			},
			onRead: func(e worklease.ReadCheckpointEvent) {
				add("read %d %v %t", e.Size, e.Duration, errors.Is(e.Err, worklease.ErrFenced))
			},
			onFenced: func(e worklease.FencedEvent) { add("fenced %v", e.Operation) },
		})
		token := acquire(t, l, "work")
		w.fails(delay(time.Second))
		must(t, l.Checkpoint(t.Context(), token, []byte("four")))
		must(t, l.Renew(t.Context(), token))
		_, _, err := l.ReadCheckpoint(t.Context(), token)
		must(t, err)
		time.Sleep(ttl)
		acquire(t, newLease(t, w.backend, "b"), "work")
		_ = l.Checkpoint(t.Context(), token, nil)
		_ = l.Renew(t.Context(), token)
		_, _, _ = l.ReadCheckpoint(t.Context(), token)
		_ = l.Release(t.Context(), token, worklease.WithExit(worklease.ExitRetired))
		want := []string{
			"checkpoint 4 1s false", "renew 1 1s false", "read 4 1s false",
			"checkpoint 0 1s true", "fenced checkpoint", "renew 1 1s true", "fenced renew",
			"read 0 1s true", "release retired 1s true", "fenced release",
		}
		if !slices.Equal(told, want) {
			t.Errorf("told\n%q, want\n%q", told, want)
		}
	})
}

// R10. Renewal events are delivered while an observer allows it, and cost no lease.
func TestObserverThatBlocks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		gate := make(chan struct{})
		var mu sync.Mutex
		told := 0
		w := newWire(nil)
		l := observed(t, w, &watcher{onRenew: func(worklease.RenewEvent) {
			<-gate
			mu.Lock()
			defer mu.Unlock()
			told++
		}})
		ctx, stop := l.StartRenewal(t.Context(), acquire(t, l, "work"))
		time.Sleep(1000*ttl + 1)
		wantLive(t, ctx)
		stop()
		sent := w.count(opRenew)
		close(gate)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if told < 1000 || told >= sent {
			t.Errorf("%d of %d events were delivered, want a bounded queue's worth", told, sent)
		}
	})
}

// R10.
func TestObserverThatPanics(t *testing.T) {
	for name, misbehave := range map[string]func(){"panics": func() { panic("observer") }, "exits": runtime.Goexit} {
		bubbleNamed(t, name, func(t *testing.T) {
			told := 0
			w := newWire(nil)
			l := observed(t, w, &watcher{onRenew: func(worklease.RenewEvent) {
				if told++; told%4 == 1 {
					misbehave()
				}
			}})
			ctx, stop := l.StartRenewal(t.Context(), acquire(t, l, "work"))
			time.Sleep(5*ttl + 1)
			wantLive(t, ctx)
			stop()
			synctest.Wait()
			if sent := w.count(opRenew); told != sent || sent != 10 {
				t.Errorf("%d of %d events were delivered", told, sent)
			}
		})
	}
}

// R6. From inside a callback, also that of the very renewal.
func TestStopRenewalInACallback(t *testing.T) {
	for name, f := range map[string]fault{"after a success": nil, "after an error": refuse} {
		bubbleNamed(t, name, func(t *testing.T) {
			started, stopped := make(chan struct{}), make(chan struct{})
			var stop func()
			w := newWire(only(opRenew, func(ctx context.Context, op string, n int, do func() error) error {
				if f == nil {
					return do()
				}
				return f(ctx, op, n, do)
			}))
			l := observed(t, w, &watcher{onRenew: func(worklease.RenewEvent) {
				<-started
				stop()
				close(stopped)
			}})
			token := acquire(t, l, "work")
			var ctx context.Context
			ctx, stop = l.StartRenewal(t.Context(), token)
			close(started)
			<-stopped
			n := w.count(opRenew)
			time.Sleep(5 * ttl)
			if w.count(opRenew) != n {
				t.Error("a renewal followed stopRenewal")
			}
			wantIs(t, context.Cause(ctx), context.Canceled)
		})
	}
	bubbleNamed(t, "of the caller's checkpoint", func(t *testing.T) {
		var stop func()
		l := observed(t, memory.New(), &watcher{onCheckpoint: func(worklease.CheckpointEvent) { stop() }})
		token := acquire(t, l, "work")
		var ctx context.Context
		ctx, stop = l.StartRenewal(t.Context(), token)
		must(t, l.Checkpoint(t.Context(), token, nil))
		wantIs(t, context.Cause(ctx), context.Canceled)
	})
}

// O1. A renewal that was fenced says so once.
func TestFencedRenewalEvent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var told []string
		w := newWire(nil)
		l := observed(t, w, &watcher{
			onRenew:  func(e worklease.RenewEvent) { told = append(told, fmt.Sprint("renew ", e.Attempt, e.Err != nil)) },
			onFenced: func(e worklease.FencedEvent) { told = append(told, "fenced at "+e.Operation.String()) },
		})
		token := acquire(t, l, "work")
		ctx, stop := l.StartRenewal(t.Context(), token)
		must(t, w.backend.Release(t.Context(), token.Claim(), worklease.Farewell{Exit: worklease.ExitReleased}))
		acquire(t, newLease(t, w.backend, "b"), "work")
		<-ctx.Done()
		stop()
		synctest.Wait()
		if want := []string{"renew 1 true", "fenced at renew"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

func TestNilObservers(t *testing.T) {
	t.Parallel()
	var typed *watcher
	for _, o := range []worklease.LeaseObserver{nil, typed, worklease.NopObserver{}} {
		l := observed(t, memory.New(), o)
		token := acquire(t, l, "work")
		must(t, l.Checkpoint(t.Context(), token, nil))
		must(t, l.Renew(t.Context(), token))
		_, _, err := l.ReadCheckpoint(t.Context(), token)
		must(t, err)
		must(t, l.Release(t.Context(), token))
		wantIs(t, l.Renew(t.Context(), token), worklease.ErrLeaseExpired)
	}
}
