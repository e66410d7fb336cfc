package container

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runc/libcontainer/configs"
)

func TestContiguous(t *testing.T) {
	for _, c := range []struct {
		name string
		m    []idRange
		want int64
	}{
		{"empty", nil, 0},
		{"whole machine", []idRange{{0, 0, fullMap}}, fullMap},
		{"single", []idRange{{0, 1000, 1}}, 1},
		{"range", []idRange{{0, 1000, 1}, {1, 100000, 65536}}, 65537},
		{"out of order", []idRange{{1, 100000, 65536}, {0, 1000, 1}}, 65537},
		{"gap", []idRange{{0, 1000, 1}, {2, 100000, 65536}}, 1},
		{"not from zero", []idRange{{1, 100000, 65536}}, 0},
	} {
		if got := contiguous(c.m); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestMapFrom(t *testing.T) {
	around := []idRange{{0, 1000, 1}, {1, 100000, 65536}}
	for _, c := range []struct {
		name     string
		first, n int64
		want     []configs.IDMap
	}{
		{"with the caller", 0, 65536, []configs.IDMap{{Size: 1}, {ContainerID: 1, HostID: 1, Size: 65535}}},
		{"without the caller", 1, 65536, []configs.IDMap{{HostID: 1, Size: 65536}}},
		{"the caller alone", 0, 1, []configs.IDMap{{Size: 1}}},
		{"more than there is", 1, 70000, []configs.IDMap{{HostID: 1, Size: 65536}}},
	} {
		if d := cmp.Diff(c.want, mapFrom(around, c.first, c.n)); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
	}
}
