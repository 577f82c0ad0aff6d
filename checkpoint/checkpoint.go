// Package checkpoint turns values into the bytes of a checkpoint and back.
//
//	data, err := checkpoint.Encode(checkpoint.JSON(), progress)
//	progress, err := checkpoint.Decode[Progress](checkpoint.JSON(), prior)
//
// Work that begins has no checkpoint: nil decodes to the zero value.
//
// An owner and its successor may run different versions of a program, in either order
// during a deployment: change the type so that each decodes what the other saves, as by
// new fields with JSON.
package checkpoint

import (
	"encoding/json"
	"fmt"

	"github.com/aetomala/worklease"
)

// Codec marshals values. One that serves several goroutines must be safe for that.
type Codec interface {
	// Marshal encodes v. The bytes become the caller's.
	Marshal(v any) ([]byte, error)

	// Unmarshal decodes data, which is never nil, into the value that v points to. It
	// keeps no reference to data.
	Unmarshal(data []byte, v any) error
}

// JSONCodec is the [Codec] of encoding/json.
type JSONCodec struct{}

// JSON returns the JSONCodec.
func JSON() JSONCodec { return JSONCodec{} }

// Marshal calls [json.Marshal].
func (JSONCodec) Marshal(v any) ([]byte, error) { return json.Marshal(v) }

// Unmarshal calls [json.Unmarshal].
func (JSONCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

// Encode returns v in the form of c. The bytes are never nil when the error is, also
// if those of c were: to save them is to save something. An error has c's as its
// cause; a nil c is [worklease.ErrInvalid].
func Encode[T any](c Codec, v T) ([]byte, error) {
	if c == nil {
		return nil, fmt.Errorf("worklease: encode checkpoint of %T: %w", v, errNoCodec)
	}
	data, err := c.Marshal(v)
	switch {
	case err != nil:
		return nil, fmt.Errorf("worklease: encode checkpoint of %T: %w", v, err)
	case data == nil:
		return []byte{}, nil
	}
	return data, nil
}

// Decode returns the value in data. Nil data is that of work without a checkpoint: it
// decodes to the zero value, without c. After an error, which has c's as its cause,
// the value is zero, however far c got; a nil c is [worklease.ErrInvalid].
func Decode[T any](c Codec, data []byte) (T, error) {
	var v, zero T
	switch {
	case c == nil:
		return zero, fmt.Errorf("worklease: decode checkpoint to %T: %w", zero, errNoCodec)
	case data == nil:
		return zero, nil
	}
	if err := c.Unmarshal(data, &v); err != nil {
		return zero, fmt.Errorf("worklease: decode checkpoint to %T: %w", zero, err)
	}
	return v, nil
}

var errNoCodec = fmt.Errorf("%w: codec is nil", worklease.ErrInvalid)
