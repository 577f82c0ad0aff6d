package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/aetomala/worklease"
)

// What a caller and an observer are told.

func errorsSay(s *suite) {
	ctx := s.Context()
	l := s.lease("a", long)
	held := s.take(l, s.id("held"))
	released := s.take(l, s.id("released"))
	s.must("Release", l.Release(ctx, released))
	fenced := s.take(l, s.id("fenced"))
	s.must("Release", l.Release(ctx, fenced))
	s.take(l, fenced.WorkID())
	retired := s.take(l, s.id("retired"))
	s.must("Release", l.Release(ctx, retired, worklease.WithExit(worklease.ExitRetired)))

	says := func(err, want error, operation, workID string) {
		s.Helper()
		s.refused(operation, err, want)
		if err != nil && (!strings.Contains(err.Error(), operation) || !strings.Contains(err.Error(), workID)) {
			s.Errorf("the error of %s %q does not say so: %v", operation, workID, err)
		}
	}
	acquire := func(id string) error { _, err := l.Acquire(ctx, id); return err }
	read := func(t worklease.Token) error { _, _, err := l.ReadCheckpoint(ctx, t); return err }

	err := acquire(held.WorkID())
	says(err, worklease.ErrLeaseHeld, "acquire", held.WorkID())
	if h := new(worklease.HeldError); !errors.As(err, &h) || h.FencingToken != held.FencingToken() || h.WorkID != held.WorkID() {
		s.Errorf("a refused Acquire has no HeldError of token %d: %v", held.FencingToken(), err)
	}
	err = acquire(retired.WorkID())
	says(err, worklease.ErrLeaseRetired, "acquire", retired.WorkID())
	if r := new(worklease.RetiredError); !errors.As(err, &r) || r.FencingToken != retired.FencingToken() {
		s.Errorf("an Acquire of retired work has no RetiredError of token %d: %v", retired.FencingToken(), err)
	}
	for token, want := range map[worklease.Token]error{released: worklease.ErrLeaseExpired, fenced: worklease.ErrFenced} {
		id := token.WorkID()
		says(l.Checkpoint(ctx, token, []byte("x")), want, "checkpoint", id)
		says(l.Checkpoint(ctx, token, nil), want, "checkpoint", id)
		says(l.Renew(ctx, token), want, "renew", id)
		says(l.Release(ctx, token, worklease.WithExit(worklease.ExitAbandoned)), want, "release", id)
		says(l.Release(ctx, token, worklease.WithState([]byte("x"))), want, "release", id)
	}
	says(read(fenced), worklease.ErrFenced, "checkpoint", fenced.WorkID())
	if _, ok := s.b.(worklease.Forgetter); ok {
		says(l.Forget(ctx, fenced), worklease.ErrFenced, "forget", fenced.WorkID())
	}
	_, err = s.lease("b", long).Prior(ctx, fenced)
	says(err, worklease.ErrFenced, "prior", fenced.WorkID())
}

func endedContext(s *suite) {
	over := ended(s.Context())
	o := s.acquire(s.id("work"), "a")
	o.save("kept")
	free := s.attempt(s.id("free"), "a")
	_, err := s.b.Acquire(over, free)
	s.refused("Acquire", err, context.Canceled)
	_, err = s.b.Checkpoint(over, o.Claim, o.nextSave([]byte("x")))
	s.refused("Checkpoint", err, context.Canceled)
	_, err = s.b.Renew(over, o.Claim, long)
	s.refused("Renew", err, context.Canceled)
	s.refused("Release", s.b.Release(over, o.Claim, worklease.Farewell{Exit: worklease.ExitReleased}), context.Canceled)
	_, err = s.b.ReadCheckpoint(over, o.Claim, true)
	s.refused("ReadCheckpoint", err, context.Canceled)
	if f, ok := s.b.(worklease.Forgetter); ok {
		s.refused("Forget", f.Forget(over, o.Claim), context.Canceled)
	}
	o.stored("after calls under an ended context", []byte("kept"))
	o.heldBy("after calls under an ended context")
	next := s.acquire(free.WorkID, "b")
	s.samePrior("after an Acquire under an ended context", next.grant.Prior, worklease.Prior{})
}

// recorder writes down what an observer is told.
type recorder struct {
	worklease.NopObserver
	mu   sync.Mutex
	told []string
}

func (r *recorder) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = append(r.told, fmt.Sprintf(format, args...))
}

func (r *recorder) OnAcquire(_ context.Context, e worklease.AcquireEvent) {
	r.add("acquire token %d failed %t", e.Token.FencingToken(), e.Err != nil)
}

func (r *recorder) OnCheckpoint(_ context.Context, e worklease.CheckpointEvent) {
	r.add("checkpoint %d bytes failed %t", e.Size, e.Err != nil)
}

func (r *recorder) OnRenew(_ context.Context, e worklease.RenewEvent) {
	r.add("renew attempt %d failed %t", e.Attempt, e.Err != nil)
}

func (r *recorder) OnRelease(_ context.Context, e worklease.ReleaseEvent) {
	r.add("release %v failed %t", e.Exit, e.Err != nil)
}

func (r *recorder) OnReadCheckpoint(_ context.Context, e worklease.ReadCheckpointEvent) {
	r.add("read %d bytes clean %t failed %t", e.Size, e.CleanHandoff, e.Err != nil)
}

func (r *recorder) OnFenced(_ context.Context, e worklease.FencedEvent) {
	r.add("fenced at %v", e.Operation)
}

func events(s *suite) {
	ctx := s.Context()
	r := &recorder{}
	l := s.observed("a", long, r)
	token := s.take(l, s.id("work"))
	_, _ = l.Acquire(ctx, token.WorkID())
	_ = l.Checkpoint(ctx, token, []byte("12345"))
	_ = l.Checkpoint(ctx, token, nil)
	_ = l.Renew(ctx, token)
	_, _, _ = l.ReadCheckpoint(ctx, token)
	_ = l.Release(ctx, token)
	next := s.take(l, token.WorkID())
	_ = l.Checkpoint(ctx, token, []byte("zombie"))
	_ = l.Renew(ctx, token)
	_ = l.Release(ctx, token, worklease.WithExit(worklease.ExitAbandoned))
	_, _, _ = l.ReadCheckpoint(ctx, token)
	_, _, _ = l.ReadCheckpoint(ctx, next)
	want := []string{
		fmt.Sprintf("acquire token %d failed false", token.FencingToken()),
		"acquire token 0 failed true",
		"checkpoint 5 bytes failed false",
		"checkpoint 0 bytes failed false",
		"renew attempt 1 failed false",
		"read 5 bytes clean false failed false",
		"release released failed false",
		fmt.Sprintf("acquire token %d failed false", next.FencingToken()),
		"checkpoint 6 bytes failed true", "fenced at checkpoint",
		"renew attempt 1 failed true", "fenced at renew",
		"release abandoned failed true", "fenced at release",
		"read 0 bytes clean false failed true",
		"read 5 bytes clean true failed false",
	}
	if !slices.Equal(r.told, want) {
		s.Errorf("the observer was told\n\t%s\nwant\n\t%s", strings.Join(r.told, "\n\t"), strings.Join(want, "\n\t"))
	}
}
