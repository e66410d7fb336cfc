package publish

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/aspis-dev/aspis/overlay/gitrepo"
	"github.com/aspis-dev/aspis/schemas"
)

// maxXattr bounds what is copied of a file's extended attributes, in bytes.
const maxXattr = 64 << 10

// notes collects what the caller is told, from several goroutines.
type notes struct {
	mu                                   sync.Mutex
	modesLost, owners, hardLinks, xattrs []string
}

func (n *notes) add(list *[]string, p string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	*list = append(*list, p)
}

// stageFile writes the new file of op i. What it replaces lends it permissions,
// owner and attributes; one that replaces nothing gets those that a program of
// the user would give it.
func (t *tx) stageFile(o *op, i int, content Content, over sight, n *notes) error {
	if o.After.Mode == gitrepo.ModeSymlink {
		return t.stageLink(o, i, content)
	}
	perm := uint32(0o666)
	if o.After.Mode == gitrepo.ModeExec {
		perm = 0o777
	}
	fd, err := unix.Openat(t.new, slot(i), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, perm)
	if err != nil {
		return full("stage the change", err)
	}
	f := os.NewFile(uintptr(fd), o.Path)
	err = copyBlob(f, content, o.After.Blob)
	if err == nil {
		err = t.dress(f, o, over, n)
	}
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	o.Ino = st.Ino
	if err = errors.Join(err, f.Close()); err != nil {
		return full(fmt.Sprintf("stage %q", o.Path), err)
	}
	return nil
}

func copyBlob(f *os.File, content Content, ref schemas.BlobRef) error {
	r, size, err := content.OpenBlob(ref)
	if err != nil {
		return err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, h), io.LimitReader(r, size+1))
	if err = errors.Join(err, r.Close()); err != nil {
		return err
	}
	if got := schemas.BlobRef("blob:sha256:" + hex.EncodeToString(h.Sum(nil))); n != size || got != ref {
		return fmt.Errorf("the content that was given for %s is %s", ref, got)
	}
	return nil
}

func (t *tx) stageLink(o *op, i int, content Content) error {
	target, err := readLink(content, o.After.Blob)
	if err != nil {
		return fmt.Errorf("stage %q: %w", o.Path, err)
	}
	if leadsOut(o.Path, target) {
		return &InvalidError{Path: o.Path, Detail: fmt.Sprintf("would be a symlink that leads out of the workspace, to %.200q", target)}
	}
	if err := unix.Symlinkat(target, t.new, slot(i)); err != nil {
		return full(fmt.Sprintf("stage %q", o.Path), err)
	}
	o.Ino, err = inode(t.new, slot(i))
	return err
}

func readLink(content Content, ref schemas.BlobRef) (string, error) {
	r, _, err := content.OpenBlob(ref)
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxTarget))
	if err != nil {
		return "", err
	}
	if len(b) == 0 || len(b) >= maxTarget || strings.ContainsRune(string(b), 0) {
		return "", errors.New("it is no target of a symlink")
	}
	if schemas.BlobRefOf(b) != ref {
		return "", fmt.Errorf("the content that was given for %s is another", ref)
	}
	return string(b), nil
}

// leadsOut tells whether a symlink's target, by its text, lies outside or in the
// git directory.
func leadsOut(at, target string) bool {
	if path.IsAbs(target) {
		return true
	}
	to := path.Join(path.Dir(at), target)
	return to == ".." || strings.HasPrefix(to, "../")
}

// dress gives a staged file permissions, owner and attributes.
func (t *tx) dress(f *os.File, o *op, over sight, n *notes) error {
	fd := int(f.Fd())
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	perm := st.Mode & 0o777
	old := over.st
	if over.state.Mode == gitrepo.ModeFile || over.state.Mode == gitrepo.ModeExec {
		perm = old.Mode & 0o777
		if o.After.Mode == gitrepo.ModeExec {
			perm |= perm >> 2 & 0o111 // who may read it may run it, as git does
			perm |= 0o100
		} else {
			perm &^= 0o111
		}
		if err := t.own(fd, o, st, old.Uid, old.Gid, n); err != nil {
			return err
		}
		if old.Nlink > 1 {
			n.add(&n.hardLinks, o.Path)
		}
		t.copyXattrs(fd, o, n)
	} else if uid, gid, ok := t.parentOwner(o.Path, st); ok {
		if err := t.own(fd, o, st, uid, gid, n); err != nil {
			return err
		}
	}
	if err := unix.Fchmod(fd, perm); err != nil {
		return err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if (st.Mode&unix.S_IXUSR != 0) != (o.After.Mode == gitrepo.ModeExec) {
		n.add(&n.modesLost, o.Path)
	}
	return nil
}

// own gives a file an owner where that is not who it has.
func (t *tx) own(fd int, o *op, now unix.Stat_t, uid, gid uint32, n *notes) error {
	if now.Uid == uid && now.Gid == gid {
		return nil
	}
	err := unix.Fchown(fd, int(uid), int(gid))
	if errors.Is(err, unix.EPERM) {
		// A group that the user is in can be given all the same.
		if now.Uid != uid || unix.Fchown(fd, -1, int(gid)) != nil {
			n.add(&n.owners, o.Path)
		}
		return nil
	}
	return err
}

// parentOwner is whom a new file belongs to: who runs this, but for root, whose
// new files in somebody's directory become that somebody's, and the directory's
// group where that is set so.
func (t *tx) parentOwner(p string, st unix.Stat_t) (uid, gid uint32, ok bool) {
	var d unix.Stat_t
	for dir := path.Dir(p); ; dir = path.Dir(dir) {
		fd, err := t.ws.tree.openDir(dir)
		if err == nil {
			err = unix.Fstat(fd, &d)
			unix.Close(fd)
		}
		if err == nil {
			break
		}
		if dir == "." {
			return 0, 0, false
		}
	}
	uid, gid = st.Uid, st.Gid
	if os.Geteuid() == 0 {
		uid, gid = d.Uid, d.Gid
	}
	if d.Mode&unix.S_ISGID != 0 {
		gid = d.Gid
	}
	return uid, gid, uid != st.Uid || gid != st.Gid
}

// copyXattrs copies the attributes that say who may do what with a file and
// those of the user's own. Capabilities are left behind.
func (t *tx) copyXattrs(to int, o *op, n *notes) {
	c := cursor{tree: t.ws.tree}
	defer c.close()
	dir, name, err := c.at(o.Path)
	if err != nil {
		return // the exchange will tell
	}
	from, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	defer unix.Close(from)
	size, err := unix.Flistxattr(from, nil)
	if err != nil || size == 0 {
		return
	}
	names := make([]byte, maxXattr)
	if size, err = unix.Flistxattr(from, names); err != nil {
		n.add(&n.xattrs, o.Path)
		return
	}
	value := make([]byte, maxXattr)
	for attr := range strings.SplitSeq(strings.TrimRight(string(names[:size]), "\x00"), "\x00") {
		if attr != "system.posix_acl_access" && attr != "security.selinux" && !strings.HasPrefix(attr, "user.") {
			continue
		}
		k, err := unix.Fgetxattr(from, attr, value)
		if err == nil {
			err = unix.Fsetxattr(to, attr, value[:k], 0)
		}
		if err != nil {
			n.add(&n.xattrs, o.Path)
			return
		}
	}
}
