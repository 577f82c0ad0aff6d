package checkpoint_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/aetomala/worklease"
	"github.com/aetomala/worklease/checkpoint"
)

type anything struct {
	Page  int
	Done  []string
	Left  map[string]*anything
	Other any
}

// L6. Whatever was stored decodes, or is an error with the zero value; what decodes
// can be stored again, and is then the same.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{"", "null", "{}", `{"Page":7,"Done":["a",null]}`, `{"Page":1.5}`, `{"Page":7,"Done":5}`, `{"Left":{"x":{"Page":1}}}`,
		`{"Other":[1,"\ud800",{}]}`, "[[[[", "\x00", "\xff\xfe", `{"Page":1}{"Page":2}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := checkpoint.Decode[anything](checkpoint.JSON(), data)
		if err != nil {
			if !reflect.DeepEqual(got, anything{}) || errors.Is(err, worklease.ErrInvalid) {
				t.Errorf("Decode(%q) = %+v, %v", data, got, err)
			}
			return
		}
		stored, err := checkpoint.Encode(checkpoint.JSON(), got)
		if err != nil {
			t.Fatalf("%+v cannot be stored: %v", got, err)
		}
		again, err := checkpoint.Decode[anything](checkpoint.JSON(), stored)
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("%+v became %s and then %+v, %v", got, stored, again, err)
		}
	})
}
