package kernel

import (
	"errors"
	"fmt"

	"github.com/aspis-dev/aspis/sandbox/seccomp"
)

// ownNamespace checks that a namespace is not the host's.
func ownNamespace(name string) func(*facts) verdict {
	return func(f *facts) verdict {
		theirs, ours := f.ns[name], f.hostNS[name]
		if err := errors.Join(theirs.err, ours.err, f.strayNS); err != nil {
			return unknown(err)
		}
		if theirs.v == ours.v {
			return falls("it is in the host's namespace %s:[%d]", name, ours.v.ino)
		}
		return stands("%s:[%d], the host's is %d", name, theirs.v.ino, ours.v.ino)
	}
}

// outer translates an id in our user namespace to the one around it, which is
// the initial one unless this process is itself in a nest of them.
func outer(own IDMap, id uint32) (uint32, error) {
	out, ok := own.Outside(id)
	if !ok {
		return 0, fmt.Errorf("id %d has no place in the host's own map", id)
	}
	return out, nil
}

func (f *facts) userNamespace() verdict {
	if v := ownNamespace("user")(f); !v.standing {
		return v
	}
	if err := errors.Join(f.uidMap.err, f.gidMap.err, f.ownUIDs.err, f.ownGIDs.err); err != nil {
		return unknown(err)
	}
	for _, m := range []struct {
		what string
		ids  IDMap
		own  IDMap
	}{{"user", f.uidMap.v, f.ownUIDs.v}, {"group", f.gidMap.v, f.ownGIDs.v}} {
		if len(m.ids) == 0 {
			return falls("no %s ids are mapped yet", m.what)
		}
		root, ok := m.ids.Outside(0)
		if !ok {
			continue // there is no root inside
		}
		out, err := outer(m.own, root)
		if err != nil {
			return unknown(err)
		}
		if out == 0 {
			return falls("its root is the machine's root: %s ids %s", m.what, m.ids)
		}
	}
	return stands("user:[%d], user ids inside->machine %s", f.ns["user"].v.ino, through(f.uidMap.v, f.ownUIDs.v))
}

// through gives a map of the process's ids to those around our own namespace,
// as far as they are there, for a person to read.
func through(ids, own IDMap) IDMap {
	var out IDMap
	for _, r := range ids {
		if o, err := outer(own, r.Outside); err == nil {
			out = append(out, IDRange{r.Inside, o, r.Count})
		}
	}
	return out
}

func (f *facts) userIDs() verdict {
	if err := errors.Join(f.status.err, f.uidMap.err, f.gidMap.err, f.ownUIDs.err, f.ownGIDs.err); err != nil {
		return unknown(err)
	}
	apart := f.ns["user"].err == nil && f.hostNS["user"].err == nil && f.ns["user"].v != f.hostNS["user"].v
	var note string
	for _, st := range f.status.v {
		uids := idCheck{"user", f.uid, f.uidMap.v, f.ownUIDs.v, apart}
		gids := idCheck{"group", f.gid, f.gidMap.v, f.ownGIDs.v, apart}
		for _, id := range st.UIDs {
			if err := uids.check(id); err != nil {
				return falls("%v", err)
			}
		}
		for _, id := range st.GIDs {
			if err := gids.check(id); err != nil {
				return falls("%v", err)
			}
		}
		// A group that the namespace does not map was there before and could
		// not be dropped, which happens only where one id is all there is.
		for _, id := range st.Groups {
			err := gids.check(id)
			if err == nil {
				continue
			}
			if !gids.single() {
				return falls("supplementary group: %v", err)
			}
			note = "; the caller's supplementary groups remain, since they cannot be dropped with one id"
		}
		if uids.single() {
			note = "; the only id there is, and the caller's" + note
		}
	}
	uid, err := outer(f.ownUIDs.v, f.status.v[0].UIDs[1])
	if err != nil {
		return unknown(err)
	}
	gid, err := outer(f.ownGIDs.v, f.status.v[0].GIDs[1])
	if err != nil {
		return unknown(err)
	}
	return stands("user %d, group %d of the machine%s", uid, gid, note)
}

// idCheck tells whether an id, as we see it, is nobody's that owns something.
type idCheck struct {
	what  string
	own   uint32 // ours
	ids   IDMap  // of the process
	outer IDMap  // of ours
	apart bool   // it has a user namespace of its own
}

// single is true where the namespace has the caller's id and no other.
func (c idCheck) single() bool { return c.apart && c.ids.Size() == 1 }

func (c idCheck) check(id uint32) error {
	out, err := outer(c.outer, id)
	if err != nil {
		return err
	}
	if out == 0 {
		return fmt.Errorf("%s id is the machine's 0", c.what)
	}
	if c.apart {
		inside, ok := c.ids.Inside(id)
		if !ok {
			return fmt.Errorf("%s id %d is not of its namespace", c.what, id)
		}
		if c.single() {
			return nil
		}
		if inside == 0 {
			return fmt.Errorf("%s id %d is the root of its namespace", c.what, id)
		}
	}
	if id == c.own {
		return fmt.Errorf("%s id %d is the host process's own", c.what, id)
	}
	return nil
}

func (f *facts) capabilities() verdict {
	if f.status.err != nil {
		return unknown(f.status.err)
	}
	for _, st := range f.status.v {
		for _, set := range []struct {
			name string
			bits uint64
		}{
			{"inheritable", st.CapInh}, {"permitted", st.CapPrm}, {"effective", st.CapEff},
			{"bounding", st.CapBnd}, {"ambient", st.CapAmb},
		} {
			if set.bits != 0 {
				return falls("the %s set is %#x", set.name, set.bits)
			}
		}
	}
	return stands("all five sets are empty (threads: %d)", len(f.status.v))
}

func (f *facts) noNewPrivileges() verdict {
	if f.status.err != nil {
		return unknown(f.status.err)
	}
	for _, st := range f.status.v {
		if !st.NoNewPrivs {
			return falls("no_new_privs is not set")
		}
	}
	return stands("no_new_privs is set (threads: %d)", len(f.status.v))
}

// seccomp checks that exactly one filter was added to those that the host
// itself is under, and that the one that the host handed over refuses what it
// is for.
//
// The loaded program could be read back by tracing the process, as root only.
// It is not: a tracer's stop shows up in every wait of this program for that
// child, as if it had ended, and the filter is loaded by the first stage, which
// is this very program.
func (f *facts) seccomp() verdict {
	if err := errors.Join(f.status.err, f.hostStatus.err); err != nil {
		return unknown(err)
	}
	host := f.hostStatus.v
	for _, st := range f.status.v {
		switch {
		case st.Seccomp != 2:
			return falls("seccomp mode %d", st.Seccomp)
		case st.Filters >= 0 && host.Filters >= 0 && st.Filters != host.Filters+1:
			return falls("%d filters, of which %d are the host's own: one more was to be loaded", st.Filters, host.Filters)
		case st.Filters < 0 && host.Seccomp != 0:
			return falls("the host is under a filter too, and this kernel does not count them")
		}
	}
	if len(f.ex.Filter) == 0 {
		return falls("a filter is in force, but the host did not say which")
	}
	if open, err := seccomp.Open(f.ex.Filter, seccomp.Forbidden()); err != nil {
		return unknown(err)
	} else if len(open) > 0 {
		return falls("the filter allows %s", quoteSome(open))
	}
	return stands("mode 2, filters %d, threads %d, program of %d instructions", f.status.v[0].Filters, len(f.status.v), len(f.ex.Filter)/8)
}

// keyCalls are all ways to a kernel key.
var keyCalls = []string{"add_key", "keyctl", "request_key"}

// sessionKeyring: the kernel does not show another process's keyrings, so
// what is checked is that none can be used.
func (f *facts) sessionKeyring() verdict {
	const blind = "keyrings cannot be seen from outside, and "
	if f.status.err != nil {
		return unknown(f.status.err)
	}
	for _, st := range f.status.v {
		if st.Seccomp != 2 || len(f.ex.Filter) == 0 {
			return falls(blind + "no known filter refuses their use")
		}
	}
	open, err := seccomp.Open(f.ex.Filter, keyCalls)
	if err != nil {
		return unknown(err)
	}
	if len(open) > 0 {
		return falls(blind+"the filter allows %s", quoteSome(open))
	}
	return stands("the filter refuses add_key, keyctl and request_key")
}

func (f *facts) pidNamespace() verdict {
	if v := ownNamespace("pid")(f); !v.standing {
		return v
	}
	if f.status.err != nil {
		return unknown(f.status.err)
	}
	ids := f.status.v[0].NSpid
	if len(ids) < 2 || ids[len(ids)-1] != 1 {
		return falls("it is not the first process of its namespace: NSpid %v", ids)
	}
	return stands("pid:[%d], where it is process 1", f.ns["pid"].v.ino)
}
