package worklease_test

import (
	"bytes"
	"log/slog"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/memory"
)

func TestTokenIsAPlainValue(t *testing.T) {
	t.Parallel()
	at := time.Date(2031, 5, 4, 3, 2, 1, 987654321, time.FixedZone("X", 3600))
	a := worklease.NewToken("work", "holder", 7, at)
	b := worklease.NewToken("work", "holder", 7, at.UTC())
	if a != b || !a.Equal(b) {
		t.Error("the same values in another time zone make another token")
	}
	if a.WorkID() != "work" || a.HolderID() != "holder" || a.FencingToken() != 7 {
		t.Errorf("got %q, %q, %d", a.WorkID(), a.HolderID(), a.FencingToken())
	}
	for _, other := range []worklease.Token{
		worklease.NewToken("work2", "holder", 7, at),
		worklease.NewToken("work", "holder2", 7, at),
		worklease.NewToken("work", "holder", 8, at),
		worklease.NewToken("work", "holder", 7, at.Add(1)),
		{},
	} {
		if a == other || a.Equal(other) {
			t.Errorf("%v equals %v", a, other)
		}
	}
	if m := map[worklease.Token]int{a: 1}; m[b] != 1 {
		t.Error("a token does not work as a map key")
	}
}

// A pointer, as in time.Time, would make equal tokens differ under ==.
func TestTokenHasNoPointerInside(t *testing.T) {
	t.Parallel()
	typ := reflect.TypeFor[worklease.Token]()
	for i := range typ.NumField() {
		switch f := typ.Field(i); f.Type.Kind() {
		case reflect.String, reflect.Uint64, reflect.Int64:
		default:
			t.Errorf("field %s is a %s", f.Name, f.Type)
		}
	}
	if !typ.Comparable() {
		t.Error("Token is not comparable")
	}
}

func TestTokenKeepsItsExpiry(t *testing.T) {
	t.Parallel()
	for _, at := range []time.Time{
		{},
		time.Unix(0, 0),
		time.Unix(1<<33, 999_999_999),
		time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC),
		time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC),
		time.Now(),
	} {
		got := worklease.NewToken("w", "h", 1, at).ExpiresAt()
		if !got.Equal(at) || got.Location() != time.UTC {
			t.Errorf("got %v, want %v in UTC", got, at)
		}
	}
}

func TestZeroToken(t *testing.T) {
	t.Parallel()
	var zero worklease.Token
	if zero.WorkID() != "" || zero.HolderID() != "" || zero.FencingToken() != 0 || !zero.ExpiresAt().IsZero() {
		t.Errorf("the zero token is %v", zero)
	}
	if zero != worklease.NewToken("", "", 0, time.Time{}) {
		t.Error("zero values do not make the zero token")
	}
	wantIs(t, zero.Validate(), worklease.ErrInvalid)
}

func TestTokenValidate(t *testing.T) {
	t.Parallel()
	at := time.Now()
	must(t, worklease.NewToken("w", "h", 1, at).Validate())
	must(t, worklease.NewToken("w", "h", math.MaxInt64, time.Time{}).Validate())
	for _, bad := range badTokens() {
		wantIs(t, bad.Validate(), worklease.ErrInvalid)
	}
}

// badTokens cannot come from any acquisition.
func badTokens() []worklease.Token {
	at := time.Now()
	return []worklease.Token{
		{},
		worklease.NewToken("", "h", 1, at),
		worklease.NewToken("w", "", 1, at),
		worklease.NewToken("w", "h", 0, at),
		worklease.NewToken("w", "h", math.MaxInt64+1, at),
		worklease.NewToken("w\x00", "h", 1, at),
		worklease.NewToken("w", "\xff", 1, at),
		worklease.NewToken(strings.Repeat("w", worklease.MaxIDBytes+1), "h", 1, at),
		worklease.NewToken("w", strings.Repeat("h", worklease.MaxIDBytes+1), 1, at),
	}
}

func TestTokenText(t *testing.T) {
	t.Parallel()
	token := worklease.NewToken("a \"b\"", "h", 42, time.Date(2031, 5, 4, 3, 2, 1, 0, time.UTC))
	const want = `worklease.Token{workID="a \"b\"" holderID="h" fencingToken=42 expiresAt=2031-05-04T03:02:01Z}`
	if got := token.String(); got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
	var out bytes.Buffer
	slog.New(slog.NewTextHandler(&out, nil)).Info("x", "token", token)
	for _, want := range []string{`token.workID="a \"b\""`, "token.holderID=h", "token.fencingToken=42", "token.expiresAt=2031-05-04T03:02:01"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log has no %s: %s", want, out.String())
		}
	}
}

// T2. The nonce tells acquisitions apart that a restored database numbers alike.
func TestTokensOfTwoAcquisitionsDiffer(t *testing.T) {
	t.Parallel()
	l, other := newLease(t, memory.New(), "h"), newLease(t, memory.New(), "h")
	a, b := acquire(t, l, "work"), acquire(t, other, "work")
	if a.FencingToken() != b.FencingToken() {
		t.Fatal("two fresh backends begin with different tokens")
	}
	if a == b || a == resumed(a) {
		t.Error("tokens of two acquisitions are ==")
	}
	if !a.Equal(resumed(a)) {
		t.Error("a token does not equal its public values")
	}
	if strings.Contains(a.String(), a.Claim().Nonce) {
		t.Error("the nonce is printed")
	}
	wantIs(t, other.Renew(t.Context(), a), worklease.ErrFenced)
	must(t, other.Renew(t.Context(), b))
}
