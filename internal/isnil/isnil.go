// Package isnil sees through interfaces.
package isnil

import "reflect"

// Value reports whether v is nil or holds nil.
func Value(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Map, reflect.Chan, reflect.Func, reflect.Slice:
		return r.IsNil()
	}
	return false
}
