// Package deps pins the module set while the first packages are written; it is removed before release.
package deps

import (
	_ "github.com/containerd/cgroups/v3"
	_ "github.com/containerd/cgroups/v3/cgroup1"
	_ "github.com/containerd/cgroups/v3/cgroup2"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/opencontainers/cgroups/devices"
	_ "github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter"
	_ "github.com/opencontainers/runc/libcontainer/specconv"
	_ "github.com/santhosh-tekuri/jsonschema/v6"
	_ "github.com/seccomp/libseccomp-golang"
	_ "github.com/urfave/cli/v2"
	_ "github.com/vishvananda/netlink"
	_ "go.yaml.in/yaml/v3"
	_ "golang.org/x/sys/unix"
)
