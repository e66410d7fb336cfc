package kernel

import (
	"errors"
	"reflect"
	"unsafe"

	"github.com/aspis-dev/aspis/sandbox"
)

// Spoil gathers the facts of a process once, and then for each fact in turn
// gives the judgement as it would be if that fact could not be read.
func Spoil(pid int, ex Expect, each func(name string, walls []sandbox.Wall)) error {
	f, err := gather(pid, ex)
	if err != nil {
		return err
	}
	each("", f.judge())
	broken := errors.New("cannot be read")
	v := reflect.ValueOf(f).Elem()
	for i := range v.NumField() {
		field, name := v.Field(i), v.Type().Field(i).Name
		if field.Kind() == reflect.Map && field.Type().Elem() == reflect.TypeFor[fact[fileID]]() {
			for _, key := range field.MapKeys() {
				m := *(*map[string]fact[fileID])(unsafe.Pointer(field.UnsafeAddr()))
				kept := m[key.String()]
				m[key.String()] = fact[fileID]{err: broken}
				each(name+" "+key.String(), f.judge())
				m[key.String()] = kept
			}
			continue
		}
		if field.Type() == reflect.TypeFor[error]() {
			spoilError((*error)(unsafe.Pointer(field.UnsafeAddr())), broken, func() { each(name, f.judge()) })
			continue
		}
		if field.Kind() != reflect.Struct {
			continue
		}
		if e := field.FieldByName("err"); e.IsValid() {
			spoilError((*error)(unsafe.Pointer(e.UnsafeAddr())), broken, func() { each(name, f.judge()) })
		}
	}
	return nil
}

func spoilError(p *error, broken error, fn func()) {
	kept := *p
	*p = broken
	fn()
	*p = kept
}
