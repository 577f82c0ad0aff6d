package fault

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgproto3"
)

func encode(t testing.TB, messages ...pgproto3.FrontendMessage) []byte {
	var raw []byte
	for _, m := range messages {
		var err error
		if raw, err = m.Encode(raw); err != nil {
			t.Fatal(err)
		}
	}
	return raw
}

func reading(raw []byte) *requests {
	return newRequests(&source{in: bufio.NewReader(bytes.NewReader(raw))})
}

func TestRequests(t *testing.T) {
	t.Parallel()
	type want struct {
		SQL      []string
		Answered bool
	}
	for name, test := range map[string]struct {
		in   []pgproto3.FrontendMessage
		want []want
	}{
		"simple": {
			[]pgproto3.FrontendMessage{&pgproto3.Query{String: "begin"}, &pgproto3.Query{String: "commit"}},
			[]want{{[]string{"begin"}, true}, {[]string{"commit"}, true}},
		},
		"prepared once, run twice": {
			[]pgproto3.FrontendMessage{
				&pgproto3.Parse{Name: "s", Query: "SELECT 1"}, &pgproto3.Describe{ObjectType: 'S', Name: "s"}, &pgproto3.Sync{},
				&pgproto3.Bind{PreparedStatement: "s"}, &pgproto3.Execute{}, &pgproto3.Sync{},
				&pgproto3.Bind{PreparedStatement: "s"}, &pgproto3.Execute{}, &pgproto3.Sync{},
			},
			[]want{{nil, true}, {[]string{"SELECT 1"}, true}, {[]string{"SELECT 1"}, true}},
		},
		"one portal, executed in pieces": {
			[]pgproto3.FrontendMessage{
				&pgproto3.Parse{Query: "SELECT 1"}, &pgproto3.Bind{DestinationPortal: "p"},
				&pgproto3.Execute{Portal: "p", MaxRows: 1}, &pgproto3.Flush{},
				&pgproto3.Execute{Portal: "p", MaxRows: 1}, &pgproto3.Sync{},
			},
			[]want{{[]string{"SELECT 1"}, false}, {[]string{"SELECT 1"}, true}},
		},
		"a name taken again": {
			[]pgproto3.FrontendMessage{
				&pgproto3.Parse{Name: "s", Query: "SELECT 1"}, &pgproto3.Close{ObjectType: 'S', Name: "s"},
				&pgproto3.Parse{Name: "s", Query: "SELECT 2"},
				&pgproto3.Bind{PreparedStatement: "s"}, &pgproto3.Execute{}, &pgproto3.Sync{},
				&pgproto3.Terminate{},
			},
			[]want{{[]string{"SELECT 2"}, true}, {nil, false}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			raw := encode(t, test.in...)
			r := reading(raw)
			var passed []byte
			for _, want := range test.want {
				req, err := r.next()
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(req.sql, want.SQL); diff != "" || req.answered != want.Answered {
					t.Errorf("answered %v, statements (-got +want):\n%s", req.answered, diff)
				}
				passed = append(passed, req.raw...)
			}
			if _, err := r.next(); err == nil || !bytes.Equal(passed, raw) {
				t.Errorf("at the end: %v; %d bytes in, %d out", err, len(raw), len(passed))
			}
		})
	}
}

// Whatever comes in goes out, byte for byte, up to a message cut short.
func FuzzRequests(f *testing.F) {
	f.Add(encode(f, &pgproto3.Query{String: "commit"}, &pgproto3.Sync{}))
	f.Add(encode(f, &pgproto3.Parse{Name: "s"}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{})[:20])
	f.Add([]byte("B\x00\x00\x00\x04"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := reading(raw)
		var passed []byte
		for {
			req, err := r.next()
			passed = append(passed, req.raw...)
			if err != nil {
				break
			}
		}
		if !bytes.HasPrefix(raw, passed) {
			t.Errorf("%q went out as %q", raw, passed)
		}
	})
}
