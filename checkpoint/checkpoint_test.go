package checkpoint_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/checkpoint"
)

type progress struct {
	Page int
	Done []string
}

// codec returns what a test sets.
type codec struct {
	marshal   func(v any) ([]byte, error)
	unmarshal func(data []byte, v any) error
}

func (c codec) Marshal(v any) ([]byte, error)      { return c.marshal(v) }
func (c codec) Unmarshal(data []byte, v any) error { return c.unmarshal(data, v) }

func TestThereAndBack(t *testing.T) {
	t.Parallel()
	data, err := checkpoint.Encode(checkpoint.JSON(), progress{Page: 7, Done: []string{"a"}})
	if err != nil || string(data) != `{"Page":7,"Done":["a"]}` {
		t.Fatalf("got %s, %v", data, err)
	}
	got, err := checkpoint.Decode[progress](checkpoint.JSON(), data)
	if err != nil || got.Page != 7 || len(got.Done) != 1 || got.Done[0] != "a" {
		t.Errorf("got %+v, %v", got, err)
	}
	pointer, err := checkpoint.Decode[*progress](checkpoint.JSON(), data)
	if err != nil || pointer == nil || pointer.Page != 7 {
		t.Errorf("got %+v, %v", pointer, err)
	}
}

// L6.
func TestNilDecodesToZeroWithoutTheCodec(t *testing.T) {
	t.Parallel()
	untouched := codec{unmarshal: func([]byte, any) error {
		t.Error("the codec was called")
		return nil
	}}
	if got, err := checkpoint.Decode[progress](untouched, nil); err != nil || got.Page != 0 || got.Done != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := checkpoint.Decode[*progress](untouched, nil); err != nil || got != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	// Empty is no nil: something was saved.
	var syntax *json.SyntaxError
	if _, err := checkpoint.Decode[progress](checkpoint.JSON(), []byte{}); !errors.As(err, &syntax) {
		t.Errorf("empty data: %v, want the codec's error", err)
	}
}

// L6. Also where the codec had begun to fill the value in.
func TestFailedDecodeReturnsZero(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	half := codec{unmarshal: func(_ []byte, v any) error {
		v.(*progress).Page = 7
		return broken
	}}
	got, err := checkpoint.Decode[progress](half, []byte("x"))
	if !errors.Is(err, broken) || got.Page != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	got, err = checkpoint.Decode[progress](checkpoint.JSON(), []byte(`{"Page":7,"Done":5}`))
	var typ *json.UnmarshalTypeError
	if !errors.As(err, &typ) || got.Page != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	if !strings.Contains(err.Error(), "decode checkpoint") || !strings.Contains(err.Error(), "progress") {
		t.Errorf("the error does not say what failed: %v", err)
	}
}

func TestFailedEncode(t *testing.T) {
	t.Parallel()
	data, err := checkpoint.Encode(checkpoint.JSON(), func() {})
	var unsupported *json.UnsupportedTypeError
	if data != nil || !errors.As(err, &unsupported) {
		t.Errorf("got %s, %v", data, err)
	}
	broken := errors.New("broken")
	data, err = checkpoint.Encode(codec{marshal: func(any) ([]byte, error) { return []byte("half"), broken }}, 1)
	if data != nil || !errors.Is(err, broken) || !strings.Contains(err.Error(), "encode checkpoint of int") {
		t.Errorf("got %s, %v", data, err)
	}
}

// A nil state keeps what is stored, so a codec whose form of a value is nothing must
// not say nil.
func TestEncodeNeverReturnsNil(t *testing.T) {
	t.Parallel()
	data, err := checkpoint.Encode(codec{marshal: func(any) ([]byte, error) { return nil, nil }}, 1)
	if err != nil || data == nil || !bytes.Equal(data, []byte{}) {
		t.Errorf("got %v, %v", data, err)
	}
}

func TestNilCodec(t *testing.T) {
	t.Parallel()
	if _, err := checkpoint.Encode(nil, 1); !errors.Is(err, worklease.ErrInvalid) {
		t.Errorf("Encode: %v", err)
	}
	for _, data := range [][]byte{nil, []byte("1")} {
		if got, err := checkpoint.Decode[int](nil, data); !errors.Is(err, worklease.ErrInvalid) || got != 0 {
			t.Errorf("Decode: %v, %v", got, err)
		}
	}
}
