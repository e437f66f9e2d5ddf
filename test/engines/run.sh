#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Unmodified Docker and Podman, of Debian's packages, with agentrun as their runtime. All that they keep is in one folder, the daemon is in
# a network namespace of its own, and its cgroups are in one of the test's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

bin=$PWD/bin
work=$(mktemp -d /run/agentrun-engines-XXXXXX)
group=$(basename "$work")
export AGENTRUN_STATE_DIR=$work/state AGENTRUN_RUN_DIR=$work/run
mkdir -m 0700 "$work/state" "$work/run"
for ring in 1 2 3; do ln -sf agentrun-oci "$bin/agentrun-ring$ring"; done
passed=0 failed=0

finish() {
	code=$?
	"${docker[@]}" rm -f "$("${docker[@]}" ps -aq)" >/dev/null 2>&1 || true
	[[ -z ${daemon:-} ]] || { kill "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true; }
	"${podman[@]}" rm -f -a >/dev/null 2>&1 || true
	"$bin/agentrun" ps -q | xargs -r "$bin/agentrun" kill >/dev/null || true
	for _ in $(seq 100); do pgrep -f "$work" >/dev/null || break; sleep 0.1; done # conmon, and what a shim leaves
	grep -o " ${work}[^ ]*" /proc/mounts | sort -r | xargs -r umount -l 2>/dev/null || true
	find /sys/fs/cgroup -depth -type d -path "*/$group*" -exec rmdir {} + 2>/dev/null || true
	rm -rf "$work"
	exit $code
}
docker=(docker -H "unix://$work/docker.sock")
podman=(podman --root "$work/podman/root" --runroot "$work/podman/run" --cgroup-manager cgroupfs)
trap finish EXIT

# is NAME WANT COMMAND…: exit code and output, in one word each line
is() {
	local name=$1 want=$2 got
	shift 2
	got=$(timeout 60 "$@" 2>&1 </dev/null; echo "exit $?")
	if [[ $got == *$want* ]]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		printf 'FAIL %s: want %q in\n%s\n' "$name" "$want" "$got"
	fi
}

root=$work/rootfs
mkdir -p "$root"/{bin,etc,tmp,run,proc,dev,srv}
cp /bin/busybox "$root/bin/"
for name in sh true sleep id cat ls env echo; do ln -s busybox "$root/bin/$name"; done
tar -C "$root" -cf "$work/root.tar" .

unshare --net dockerd --data-root "$work/docker" --exec-root "$work/exec" -H "unix://$work/docker.sock" --pidfile "$work/pid" \
	--iptables=false --ip6tables=false --bridge=none --cgroup-parent "/$group" \
	--add-runtime agentrun-ring1="$bin/agentrun-ring1" --add-runtime agentrun-ring2="$bin/agentrun-ring2" \
	--add-runtime agentrun-ring3="$bin/agentrun-ring3" >"$work/dockerd.log" 2>&1 &
daemon=$!
for _ in $(seq 100); do "${docker[@]}" version >/dev/null 2>&1 && break; sleep 0.2; done
"${docker[@]}" import "$work/root.tar" box >/dev/null
"${podman[@]}" import -q "$work/root.tar" box >/dev/null

for ring in 2 3; do
	run=("${docker[@]}" run --rm --network none --runtime "agentrun-ring$ring" box)
	is "docker, ring $ring: exit code" "exit 7" "${run[@]}" sh -c 'exit 7'
	is "docker, ring $ring: who it is" "uid=1000 gid=1000" "${run[@]}" sh -c 'exec id'
	is "docker, ring $ring: its root is read-only" "Read-only file system" "${run[@]}" sh -c 'echo x >/bin/x'
done
run=("${docker[@]}" run --rm --network none --runtime agentrun-ring2)
is "docker: environment" "A=b" "${run[@]}" -e A=b box env
is "docker: limits" "MemTotal:          65536 kB" "${run[@]}" -m 64m box cat /proc/meminfo
is "docker: input" "hello" bash -c "echo hello | ${run[*]} -i box cat"
is "docker: a command that isn't there" "exit 127" "${run[@]}" box /bin/none
for demand in "--privileged" "--cap-add SYS_ADMIN" "--pid host" "--device /dev/kmsg:/dev/x" "-v /etc:/x" "--sysctl net.ipv4.ip_forward=1" "--security-opt systempaths=unconfined"; do
	# shellcheck disable=SC2086 # words
	is "docker: $demand is refused" "demands what no ring gives" "${docker[@]}" run --rm --network none --runtime agentrun-ring2 $demand box true
done
is "docker: --network host is refused" "the host's network namespace" "${docker[@]}" run --rm --network host --runtime agentrun-ring2 box true
is "docker: detached" "exit 0" "${docker[@]}" run -d --name web --network none --runtime agentrun-ring2 box sh -c 'while :; do echo tick; sleep 0.2; done'
is "docker exec" "uid=1000" "${docker[@]}" exec web id
is "docker exec: exit code" "exit 5" "${docker[@]}" exec web sh -c 'exit 5'
is "docker logs" "tick" "${docker[@]}" logs web
is "docker pause" "exit 0" "${docker[@]}" pause web
is "docker ps" "(Paused)" "${docker[@]}" ps
is "docker unpause" "exit 0" "${docker[@]}" unpause web
is "docker top" "sleep" "${docker[@]}" top web
is "agentrun ps has it" "agentrun" bash -c "'$bin/agentrun' ps | grep -q running && echo agentrun"
is "agentrun kill ends it" "exit 0" bash -c "'$bin/agentrun' ps -q | xargs '$bin/agentrun' kill"
is "docker wait" "exit 0" "${docker[@]}" wait web
is "docker rm" "exit 0" "${docker[@]}" rm web
is "docker run -t" "/dev/pts/" script -qec "${docker[*]} run --rm -it --network none --runtime agentrun-ring2 box ls -l /proc/self/fd/0" /dev/null

for ring in 2 3; do
	run=("${podman[@]}" --runtime "$bin/agentrun-ring$ring" run --rm --network none --cgroup-parent "/$group" box)
	is "podman, ring $ring: exit code" "exit 7" "${run[@]}" sh -c 'exit 7'
	is "podman, ring $ring: who it is" "uid=1000 gid=1000" "${run[@]}" sh -c 'exec id'
done
pod=("${podman[@]}" --runtime "$bin/agentrun-ring2")
is "podman: detached" "exit 0" "${pod[@]}" run -d --name pod --network none --cgroup-parent "/$group" box sleep 100
is "podman exec" "uid=1000" "${pod[@]}" exec pod id
is "podman: annotation" "above the handler's ring" "${pod[@]}" run --rm --network none --cgroup-parent "/$group" --annotation agentrun.ring=1 box true
is "podman: privileged is refused" "demands what no ring gives" "${pod[@]}" run --rm --network none --cgroup-parent "/$group" --privileged box true
is "podman stop" "exit 0" "${pod[@]}" stop -t 1 pod
is "podman rm" "exit 0" "${pod[@]}" rm -f pod
is "nothing is left" "none" bash -c "'$bin/agentrun' ps -q | grep . || echo none"

printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
