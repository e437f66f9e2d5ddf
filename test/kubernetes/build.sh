#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds what run.sh starts into the folder given, from Go modules: Kubernetes, etcd, containerd and crictl as test/kubernetes/modules pins them.
set -euo pipefail
out=$(realpath "$1") modules=$(dirname "$(realpath "${BASH_SOURCE[0]}")")/modules
export GOFLAGS=-mod=readonly CGO_ENABLED=0
mkdir -p "$out"
cc -static -Os -s -o "$out/pause" "${modules%/*}/pause.c"

for module in containerd crictl etcd kubernetes; do
	cd "$modules/$module"
	flags="-s -w"
	if [[ $module == kubernetes ]]; then
		version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
		IFS=. read -r major minor _ <<<"${version#v}"
		flags+=" -X k8s.io/component-base/version.gitVersion=$version"
		flags+=" -X k8s.io/component-base/version.gitMajor=$major -X k8s.io/component-base/version.gitMinor=$minor"
	fi
	for tool in $(go list tool); do
		name=${tool##*/}
		[[ $tool != go.etcd.io/* ]] || name=etcd
		go build -trimpath -tags no_btrfs,no_devmapper,no_zfs -ldflags "$flags" -o "$out/$name" "$tool"
	done
done
