package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/pkg/namespaces"
)

// daemon is a real containerd with everything of its own, started for a test.
type daemon struct {
	address, dir, digest string
	cmd                  *exec.Cmd
}

const imageName = "aspis.test/probe:latest"

// startDaemon starts it and gives it an image that holds nothing but the probe.
func startDaemon(t *testing.T) *daemon {
	t.Helper()
	for _, p := range []string{"containerd", "containerd-shim-runc-v2", "runc"} {
		if _, err := exec.LookPath(p); err != nil || os.Geteuid() != 0 {
			t.Skip("needs: containerd, to be started as root")
		}
	}
	// Not t.TempDir, which only its user may pass through.
	dir, err := os.MkdirTemp("", "aspis-containerd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	d := &daemon{address: filepath.Join(dir, "sock"), dir: dir}
	config := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("version = 2\nroot = %q\nstate = %q\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \"io.containerd.snapshotter.v1.btrfs\", \"io.containerd.snapshotter.v1.zfs\", \"io.containerd.snapshotter.v1.aufs\", \"io.containerd.snapshotter.v1.devmapper\"]\n[grpc]\naddress = %q\n",
		filepath.Join(dir, "root"), filepath.Join(dir, "state"), d.address)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	d.cmd = exec.Command("containerd", "--config", config)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(log.Name())
			t.Logf("%s", b[max(0, len(b)-4000):])
		}
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		_ = d.cmd.Wait()
	})
	d.load(t)
	return d
}

// load imports the image from a tar file that is made here.
func (d *daemon) load(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(t.Context(), DefaultNamespace), time.Minute)
	defer cancel()
	c, err := client.New(d.address, client.WithTimeout(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for {
		if ok, err := c.IsServing(ctx); err == nil && ok {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("containerd does not answer")
		}
		time.Sleep(50 * time.Millisecond)
	}
	probe := build(t, "../container/testdata/probe", "CGO_ENABLED=0")
	images, err := c.Import(ctx, bytes.NewReader(ociTar(t, probe)))
	if err != nil || len(images) != 1 {
		t.Fatalf("%d images, %v", len(images), err)
	}
	d.digest = images[0].Target.Digest.String()
}

func build(t *testing.T, pkg string, args ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), filepath.Base(pkg))
	env := args[:1]
	cmd := exec.Command("go", append(append([]string{"build"}, args[1:]...), "-o", out, pkg)...)
	cmd.Env = append(os.Environ(), env...)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return out
}

type tarFile struct {
	name string
	mode int64
	text []byte
}

func tarOf(t *testing.T, files []tarFile) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.text)), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// ociTar is an image of one layer in the OCI image layout.
func ociTar(t *testing.T, probe string) []byte {
	t.Helper()
	program, err := os.ReadFile(probe)
	if err != nil {
		t.Fatal(err)
	}
	layer := tarOf(t, []tarFile{{"probe", 0o755, program}, {"etc/motd", 0o644, []byte("of the image\n")}})
	config := fmt.Appendf(nil, `{"architecture":"amd64","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":[%q]}}`, sum(layer))
	manifest := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":%q,"size":%d}]}`,
		sum(config), len(config), sum(layer), len(layer))
	index := fmt.Appendf(nil, `{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":%d,"annotations":{"io.containerd.image.name":%q}}]}`,
		sum(manifest), len(manifest), imageName)
	blob := func(b []byte) tarFile { return tarFile{"blobs/sha256/" + sum(b)[len("sha256:"):], 0o644, b} }
	return tarOf(t, []tarFile{{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)}, blob(layer), blob(config), blob(manifest), {"index.json", 0o644, index}})
}

func sum(b []byte) string {
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:])
}
