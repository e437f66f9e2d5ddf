#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A Kubernetes of one node with agentrun as a runtime of its pods: first containerd's CRI alone, by crictl, then kubelet with a control plane. All is built
# from Go modules into .cache/kubernetes, and nothing is fetched from a registry of images. docs/kubernetes.md says what is tried.
#
#   test/kubernetes/run.sh                 the tests
#   test/kubernetes/run.sh pods kills      these parts: cri, pods, and after pods network, deployment, kills, nodeagent
#   test/kubernetes/run.sh measure         how long pods take to start and what they weigh, beside runc's
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

export patience=${AGENTRUN_KUBERNETES_PATIENCE-1} # by which all times are multiplied
if [[ ${1-} != inside ]]; then
	[[ -n ${AGENTRUN_KUBERNETES_BUILT-} ]] || bash test/kubernetes/build.sh .cache/kubernetes
	for ring in 1 2 3; do ln -sf agentrun-oci "bin/agentrun-ring$ring"; done
	work=$(mktemp -d /tmp/agentrun-kubernetes-XXXXXX)
	group=kubernetes-${work##*-}
	# shellcheck disable=SC2317 # by the trap
	finish() {
		code=$?
		for _ in $(seq $((50 * patience))); do # what is killed with the pid namespace takes a moment
			find /sys/fs/cgroup -depth -path "*/$group*" -type d -exec rmdir {} + 2>/dev/null && break
			sleep 0.1
		done
		rmdir "$work" || code=1
		exit "$code"
	}
	trap finish EXIT
	unshare --mount --net --pid --fork --kill-child --mount-proc bash test/kubernetes/run.sh inside "$work" "$group" "${*:-cri pods network deployment kills nodeagent}"
	exit
fi

export work=$2 group=$3 bin=$PWD/bin PATH=$PWD/.cache/kubernetes:$PATH
export AGENTRUN_STATE_DIR=$work/state AGENTRUN_RUN_DIR=$work/run KUBECONFIG=$work/kubeconfig
passed=0 failed=0
set -a # functions, for whoever is started by timeout
# shellcheck source=test/kubernetes/node.sh
. test/kubernetes/node.sh
make_groups
own_places
mkdir -m 0700 "$AGENTRUN_STATE_DIR" "$AGENTRUN_RUN_DIR"
node_files
start_containerd
images

# limited COMMAND…: what it, or a function, says within 90 seconds, and how it ends.
limited() {
	# shellcheck disable=SC2016
	timeout $((90 * patience)) bash -c '"$@"' - "$@" 2>&1 </dev/null
	echo "exit $?"
}

# judge NAME WANT GOT
judge() {
	if [[ $3 == *"$2"* ]]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		printf 'FAIL %s: want %q in\n%.2000s\n' "$@"
	fi
}

# is NAME WANT COMMAND…: WANT is in the output, or how it ends.
is() { judge "$1" "$2" "$(limited "${@:3}")"; }

# soon NAME WANT COMMAND…: is, with a minute for it to become so.
soon() {
	local got end=$((SECONDS + 60 * patience))
	until got=$(limited "${@:3}"); [[ $got == *"$2"* ]] || ((SECONDS >= end)); do sleep 0.2; done
	judge "$1" "$2" "$got"
}

# gone: nothing is left of pods within two minutes.
gone() {
	local end=$((SECONDS + 120 * patience)) # kubelet looks for what is dead each minute
	while [[ -n $(left) ]] && ((SECONDS < end)); do sleep 0.2; done
	is "$1" "nothing" bash -c 'left | grep . || echo nothing'
}

# left tells what of pods there still is on the node: runs, processes, mounts, network namespaces and groups.
left() {
	"$bin/agentrun" ps -q
	pgrep -af 'agentrun (exec|hold)|hold-pod|containerd-shim|agentrun-gateway' | cut -c1-150
	grep -E ' /run/containerd/io.containerd|/run/netns/cni|/var/lib/kubelet/pods' /proc/mounts
	find /sys/fs/cgroup -path "*/$group/*" -type d \( -name 'pod*' -o -name agentrun \)
} 2>/dev/null

for part in $4; do
	# shellcheck disable=SC1090
	. "test/kubernetes/parts/$part.sh"
	printf '%s: after %d s %d passed, %d failed\n' "$part" "$SECONDS" "$passed" "$failed"
done

printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
