package worker_test

import (
	"context"
	"slices"
	"testing"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/internal/tenure/tenuretest"
	"github.com/aetomala/worklease/worker"
)

// A Runner has no callbacks in which a context could end or a lease be lost.
var endings = slices.DeleteFunc(slices.Clone(tenuretest.Endings), func(e tenuretest.Ending) bool {
	return e.Name == "cancelled before the function" || e.Name == "lost before the function"
})

// TestEndings is the table of the package comment, cut at each point.
func TestEndings(t *testing.T) {
	tenuretest.Run(t, endings, func(s *tenuretest.Scene, e tenuretest.Ending) {
		r := newRunner(s.T, worker.RunnerConfig{
			Lease: s.Lease, AcquireOptions: s.AcquireOptions, RenewalOptions: s.RenewalOptions,
			CleanupTimeout: s.CleanupTimeout, WindDown: s.WindDown,
			WorkFn: func(ctx context.Context, _ worklease.Token, prior []byte, clean bool) ([]byte, error) {
				if string(prior) != e.Old || !clean {
					s.T.Errorf("the function was told %d bytes, %v", len(prior), clean)
				}
				if e.Work == nil {
					s.T.Error("the function was called")
					return nil, nil
				}
				return nil, e.Work(s, ctx)
			},
		})
		var err error
		panicked, exited := tenuretest.Alone(func() { err = r.Run(s.Ctx, tenuretest.WorkID) })
		if panicked != e.Panics || exited != e.Exits {
			s.T.Errorf("panicked with %v, exited %v; want %v, %v", panicked, exited, e.Panics, e.Exits)
		}
		tenuretest.CheckError(s.T, err, e.Errs)
	})
}

// The table of the package comment says what the endings do. A state that is too large is
// one of package tenure's own.
func TestTableOfEndings(t *testing.T) {
	t.Parallel()
	tenuretest.ReadTable(t, "worker.go").Check(t, endings, []string{"returns a state that is too large"},
		func(e tenuretest.Ending) string { return e.Line },
		func(t *testing.T, e tenuretest.Ending, columns []string) { tenuretest.CompareError(t, e, columns[0]) })
}
