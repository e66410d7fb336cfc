package render

// Palette holds the few colours in use; the zero Palette has none.
type Palette struct{ on bool }

// Colours gives a palette that colours, or not.
func Colours(on bool) Palette { return Palette{on} }

func (p Palette) paint(code, s string) string {
	if !p.on || s == "" {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (p Palette) red(s string) string    { return p.paint("31;1", s) }
func (p Palette) yellow(s string) string { return p.paint("33", s) }
func (p Palette) green(s string) string  { return p.paint("32;1", s) }
func (p Palette) dim(s string) string    { return p.paint("2", s) }
func (p Palette) bold(s string) string   { return p.paint("1", s) }
