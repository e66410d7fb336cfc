package sandbox

import "time"

// Evidence is what the kernel said of one process at one moment.
type Evidence struct {
	Runtime string    `json:"runtime"`
	Pid     int       `json:"pid"` // as the host sees it
	At      time.Time `json:"at"`
	Walls   []Wall    `json:"walls"` // one for each entry of the table, in its order
}

// Wall is one wall as it was found.
type Wall struct {
	Name     WallName `json:"name"`
	Standing bool     `json:"standing"`
	// Seen is what was read, or why it could not be read. It may quote names
	// and must be escaped before it reaches a terminal.
	Seen string `json:"seen"`
	// Fix says what a person can do about a wall that does not stand.
	Fix string `json:"fix,omitempty"`
	// Needed is the weakest mode that cannot be had without this wall.
	Needed Mode `json:"needed"`
}

// unseen is what is reported of a wall that the evidence does not mention.
const unseen = "the evidence says nothing of it"

// Mode is the strongest mode that the evidence earns, with the walls that
// keep it from ModeIsolated.
//
// The rule: isolated when every wall of the table stands; mediated-write when
// every wall stands that the table needs for mediated-write; else gated. What
// a wall is needed for is taken from the table, not from the evidence, which
// may have been stored and read again. A wall that is not mentioned does not
// stand; one that is mentioned twice stands if both do; one that the table
// does not know, and that does not stand, is needed for isolated.
func (e Evidence) Mode() (Mode, []Wall) {
	mode := ModeIsolated
	var missing []Wall
	miss := func(w Wall, needed Mode) {
		missing = append(missing, w)
		mode = min(mode, needed-1)
	}
	seen := make(map[WallName]bool, len(table))
	for _, w := range e.Walls {
		seen[w.Name] = true
		if w.Standing {
			continue
		}
		needed := ModeIsolated
		if row, ok := Lookup(w.Name); ok {
			needed = row.Needed
		}
		miss(w, needed)
	}
	for _, row := range table {
		if !seen[row.Name] {
			miss(row.Wall(false, unseen), row.Needed)
		}
	}
	return mode, missing
}
