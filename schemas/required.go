package schemas

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// requireMembers checks that every member that the Go type does not mark
// omitzero is there, at every depth, and that nothing is null but where the
// type says so. Decoding alone cannot tell a missing false from a false.
func requireMembers(raw []byte, t reflect.Type) error {
	d := jsontext.NewDecoder(bytes.NewBuffer(raw))
	if err := require(d, shapeOf(t)); err != nil {
		return err
	}
	return nil
}

// shape is what requireMembers needs to know of a type.
type shape struct {
	members  map[string]*shape // of an object; nil for others
	required []string
	elem     *shape // of an array
	nullable bool
}

var shapes sync.Map // reflect.Type to *shape; a cache of pure results

var (
	rawType   = reflect.TypeFor[jsontext.Value]()
	scopeType = reflect.TypeFor[Scope]()
)

// open is the shape of what is not looked into.
func open(t reflect.Type) *shape { return &shape{nullable: t == rawType} }

func shapeOf(t reflect.Type) *shape {
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	s := makeShape(t)
	shapes.Store(t, s)
	return s
}

func makeShape(t reflect.Type) *shape {
	if t == rawType || t == scopeType || t.PkgPath() == "time" {
		return open(t)
	}
	switch t.Kind() {
	case reflect.Pointer:
		return shapeOf(t.Elem())
	case reflect.Slice:
		return &shape{elem: shapeOf(t.Elem())}
	case reflect.Struct:
		s := &shape{members: map[string]*shape{}}
		for i := range t.NumField() {
			f := t.Field(i)
			name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue
			}
			m := shapeOf(f.Type)
			if !strings.Contains(opts, "omitzero") {
				s.required = append(s.required, name)
				if f.Type.Kind() == reflect.Pointer {
					// A pointer that is always written is the wire's "T | null".
					m = &shape{members: m.members, required: m.required, elem: m.elem, nullable: true}
				}
			}
			s.members[name] = m
		}
		return s
	}
	return open(t)
}

func require(d *jsontext.Decoder, s *shape) error {
	kind := d.PeekKind()
	at := func(detail string) error {
		return &DecodeError{Pointer: string(d.StackPointer()), Detail: detail, Offset: d.InputOffset()}
	}
	switch {
	case kind == 'n' && !s.nullable:
		if _, err := d.ReadToken(); err != nil {
			return decodeError(err)
		}
		return at("is null; leave it out instead")
	case kind == '{' && s.members != nil:
		return requireObject(d, s)
	case kind == '[' && s.elem != nil:
		if _, err := d.ReadToken(); err != nil {
			return decodeError(err)
		}
		for d.PeekKind() != ']' {
			if err := require(d, s.elem); err != nil {
				return err
			}
		}
		_, err := d.ReadToken()
		return wrapToken(err)
	default:
		return wrapToken(d.SkipValue())
	}
}

func requireObject(d *jsontext.Decoder, s *shape) error {
	if _, err := d.ReadToken(); err != nil {
		return decodeError(err)
	}
	seen := make(map[string]bool, len(s.members))
	for d.PeekKind() != '}' {
		tok, err := d.ReadToken()
		if err != nil {
			return decodeError(err)
		}
		name := tok.String()
		seen[name] = true
		m := s.members[name]
		if m == nil {
			m = &shape{nullable: true}
		}
		if err := require(d, m); err != nil {
			return err
		}
	}
	if _, err := d.ReadToken(); err != nil {
		return decodeError(err)
	}
	for _, name := range s.required {
		if !seen[name] {
			return &DecodeError{Pointer: string(d.StackPointer()), Detail: fmt.Sprintf("the member %q is missing", name), Offset: d.InputOffset()}
		}
	}
	return nil
}

func wrapToken(err error) error {
	if err == nil {
		return nil
	}
	return decodeError(err)
}

// decodeMessage is Decode with every required member asked for, followed by the
// message's own rules.
func decodeMessage[T any](raw []byte, lim Limits, rules func(*T) error) (*T, error) {
	v := new(T)
	if err := Decode(raw, v, lim); err != nil {
		return nil, err
	}
	if err := requireMembers(raw, reflect.TypeFor[T]()); err != nil {
		return nil, err
	}
	if rules != nil {
		if err := rules(v); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// DecodeRequired is Decode that also asks for every member that v's type does
// not mark omitzero, at every depth. v is a pointer.
func DecodeRequired(raw []byte, v any, lim Limits) error {
	if err := Decode(raw, v, lim); err != nil {
		return err
	}
	return requireMembers(raw, reflect.TypeOf(v).Elem())
}
