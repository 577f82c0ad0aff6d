package hold

import "context"

type wantedKey struct{}

// WithWanted lets a statement for many claims find out, when it is about to be sent,
// which of them still want it: wanted is asked for a claim's place. In between, the
// statement may have waited for a connection.
func WithWanted(ctx context.Context, wanted func(place int) bool) context.Context {
	return context.WithValue(ctx, wantedKey{}, wanted)
}

// Wanted returns what [WithWanted] was given; without it, every claim is wanted.
func Wanted(ctx context.Context) func(place int) bool {
	if wanted, ok := ctx.Value(wantedKey{}).(func(int) bool); ok {
		return wanted
	}
	return func(int) bool { return true }
}
