package hold

import "context"

type wantedKey struct{}

// WithWanted lets a statement for many claims find out, when it is about to be sent,
// which of them still want it. In between, it may have waited for a connection.
func WithWanted(ctx context.Context, wanted func(Claim) bool) context.Context {
	return context.WithValue(ctx, wantedKey{}, wanted)
}

// Wanted returns what [WithWanted] was given; without it, every claim is wanted.
func Wanted(ctx context.Context) func(Claim) bool {
	if wanted, ok := ctx.Value(wantedKey{}).(func(Claim) bool); ok {
		return wanted
	}
	return func(Claim) bool { return true }
}
