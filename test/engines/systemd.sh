#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Docker with the cgroup driver systemd, in the VM (vm.sh systemd): a container's cgroup is in a scope of systemd's.
set -euo pipefail
export PATH=/payload/bin:$PATH
work=/work/engines
mkdir -p "$work/root"/{bin,etc,tmp,run,proc,dev}
export AGENTRUN_STATE_DIR=$work/state AGENTRUN_RUN_DIR=$work/run
mkdir -m 0700 "$work/state" "$work/run"
ln -sf agentrun-oci /payload/bin/agentrun-ring2
cp /bin/busybox "$work/root/bin/"
for name in sh true sleep id head tail cat; do ln -s busybox "$work/root/bin/$name"; done
printf '[Slice]\nMemoryMax=96M\n' >/etc/systemd/system/engines.slice
systemctl daemon-reload
dockerd --data-root "$work/docker" --exec-root "$work/exec" --pidfile "$work/pid" -H "unix://$work/docker.sock" --iptables=false --ip6tables=false --bridge=none \
	--exec-opt native.cgroupdriver=systemd --cgroup-parent engines.slice --add-runtime agentrun-ring2=/payload/bin/agentrun-ring2 >"$work/log" 2>&1 &
docker=(/usr/bin/docker -H "unix://$work/docker.sock")
for _ in $(seq 300); do "${docker[@]}" version >/dev/null 2>&1 && break; sleep 0.2; done
tar -C "$work/root" -c . | "${docker[@]}" import - box >/dev/null
run=("${docker[@]}" run --rm --network none --runtime agentrun-ring2 box)
passed=0 failed=0

# is NAME WANT COMMAND…: exit code and output
is() {
	local name=$1 want=$2 got
	shift 2
	got=$(timeout 120 "$@" 2>&1 </dev/null; echo "exit $?")
	if [[ $got == *$want* ]]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		printf 'FAIL %s: want %q in\n%s\n' "$name" "$want" "$got"
	fi
}

is "the driver" "systemd" "${docker[@]}" info -f '{{.CgroupDriver}}'
is "exit code" "exit 7" "${run[@]}" sh -c 'exit 7'
is "who it is" "uid=1000" "${run[@]}" id
is "the slice's memory" "exit 137" "${run[@]}" sh -c "set -o pipefail; head -c 200000000 /dev/zero | tail -c 200000000 | cat >/dev/null"
id=$("${docker[@]}" run -d --network none --runtime agentrun-ring2 -m 32m box sleep 1000)
scope=/sys/fs/cgroup/engines.slice/docker-$id.scope
group=$scope/agentrun/$(agentrun ps -q)
is "its scope" "active" systemctl is-active "docker-$id.scope"
is "its group is in the scope" "33554432" cat "$group/memory.max"
is "its processes" "exit 0" grep -q . -r "$group" --include=cgroup.procs
is "its supervisor" "exit 0" grep -q . "$scope/supervisor/cgroup.procs"
is "daemon-reload" "exit 0" systemctl daemon-reload
is "the limit holds after that" "33554432" cat "$group/memory.max"
is "docker exec" "uid=1000" "${docker[@]}" exec "$id" id
is "docker pause" "exit 0" "${docker[@]}" pause "$id"
is "docker unpause" "exit 0" "${docker[@]}" unpause "$id"
is "docker stop" "exit 0" "${docker[@]}" stop -t 1 "$id"
is "docker start" "exit 0" "${docker[@]}" start "$id"
is "docker exec, after that" "uid=1000" "${docker[@]}" exec "$id" id
is "the scope's stop" "exit 0" systemctl stop "docker-$id.scope"
is "it has ended" "exit 0" "${docker[@]}" wait "$id"
is "docker rm" "exit 0" "${docker[@]}" rm "$id"
is "a parent that is no slice" "cgroup-parent for systemd cgroup should be a valid slice" "${docker[@]}" run --rm --network none --cgroup-parent /pod --runtime agentrun-ring2 box true
is "no scope is left" "none" bash -c "ls -d /sys/fs/cgroup/engines.slice/*/ 2>/dev/null || echo none"
is "no run is left" "none" bash -c "agentrun ps -q | grep . || echo none"
((failed == 0)) || tail -n 20 "$work/log"
kill "$(cat "$work/pid")"
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
