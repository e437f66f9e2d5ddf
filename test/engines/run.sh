#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Unmodified Docker, Podman and containerd, of Debian's packages, with agentrun as their runtime. All that they keep is in one folder, the daemon and
# Podman's networks are in a network namespace of their own, and their cgroups are in one of the test's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

bin=$PWD/bin
work=$(mktemp -d "${AGENTRUN_ENGINES_IN:-/run}/agentrun-engines-XXXXXX")
group=engines-${work##*-}
export AGENTRUN_STATE_DIR=$work/state AGENTRUN_RUN_DIR=$work/run XDG_CONFIG_HOME=$work/config
mkdir -m 0700 "$work/state" "$work/run"
for ring in 1 2 3; do ln -sf agentrun-oci "$bin/agentrun-ring$ring"; done
passed=0 failed=0

finish() {
	code=$?
	"${docker[@]}" rm -f "$("${docker[@]}" ps -aq)" >/dev/null 2>&1 || true
	"${ctr[@]}" tasks ls -q 2>/dev/null | xargs -r -n1 "${ctr[@]}" tasks rm -f >/dev/null 2>&1 || true
	[[ -z ${containerd:-} ]] || { kill "$containerd" 2>/dev/null || true; wait "$containerd" 2>/dev/null || true; }
	[[ -z ${daemon:-} ]] || { kill "$daemon" 2>/dev/null || true; wait "$daemon" 2>/dev/null || true; }
	"${podman[@]}" rm -f -a >/dev/null 2>&1 || true
	"$bin/agentrun" ps -q | xargs -r "$bin/agentrun" kill >/dev/null || true
	for _ in $(seq 100); do pgrep -f "$work" >/dev/null || break; sleep 0.1; done # conmon, and what a shim leaves
	grep -o " ${work}[^ ]*" /proc/mounts | sort -r | xargs -r umount -l 2>/dev/null || true
	find /sys/fs/cgroup -depth -type d -path "*/$group*" -exec rmdir {} + 2>/dev/null || true
	for at in /sys/fs/cgroup/*/"$group"; do # podman's, of controllers that this machine doesn't have
		[[ $(stat -f -c %T "$at" 2>/dev/null) != tmpfs ]] || rm -rf "$at"
	done
	rm -rf "$work"
	exit $code
}
docker=(/usr/bin/docker -H "unix://$work/docker.sock")
compose=(docker-compose -H "unix://$work/docker.sock" -p app -f "$work/compose.yml")
ctr=(ctr -a "$work/containerd.sock")
podman=(podman --root "$work/podman/root" --runroot "$work/podman/run" --cgroup-manager cgroupfs)
trap finish EXIT

# is NAME WANT COMMAND…: exit code and output, in one word each line
is() {
	local name=$1 want=$2 got
	shift 2
	got=$(timeout "${AGENTRUN_ENGINES_PATIENCE:-60}" "$@" 2>&1 </dev/null; echo "exit $?")
	if [[ $got == *$want* ]]; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		printf 'FAIL %s: want %q in\n%s\n' "$name" "$want" "$got"
	fi
}

# a group of the engine's above its containers, with a limit
pod=/sys/fs/cgroup/$group/pod limit=memory.max
[[ -e /sys/fs/cgroup/cgroup.controllers ]] || pod=/sys/fs/cgroup/memory/$group/pod limit=memory.limit_in_bytes
mkdir -p "$pod"
[[ $limit != memory.max ]] || echo +memory | tee /sys/fs/cgroup/cgroup.subtree_control "/sys/fs/cgroup/$group/cgroup.subtree_control" >/dev/null
echo 40M >"$pod/$limit"
hungry="set -o pipefail; head -c 100000000 /dev/zero | tail -c 100000000 | cat >/dev/null" # 100 MB in tail

root=$work/rootfs
mkdir -p "$root"/{bin,etc,tmp,run,proc,dev,srv}
cp /bin/busybox "$root/bin/"
for name in sh true sleep id cat ls env echo mkdir mount head tail wget httpd nc; do ln -s busybox "$root/bin/$name"; done
echo a page >"$root/srv/index.html"
tar -C "$root" -cf "$work/root.tar" .

# what the operator lets agents reach in the engines' networks
mkdir -p "$work/config/agentrun"
printf 'gateway: %s\nranges:\n  - {ring: 2, timeout: none, cpu_time: none}\n' "$work/config/agentrun/gateway.yaml" >"$work/config/agentrun/config.yaml" # in the VM all takes minutes
printf 'egress:\n  allow: [web, "peer:8000"]\n  private: ["172.16.0.0/12", "172.16.0.0/12:8000", "10.89.0.0/16"]\n' >"$work/config/agentrun/gateway.yaml"

echo '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 99}]}' >"$work/filter.json"

# shellcheck disable=SC2016 # the inner shell's
unshare --net sh -c 'ip link set lo up && exec "$@"' sh dockerd --data-root "$work/docker" --exec-root "$work/exec" -H "unix://$work/docker.sock" --pidfile "$work/pid" \
	--iptables=false --ip6tables=false --cgroup-parent "/$group" \
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
is "docker: --ulimit" "100" "${run[@]}" --ulimit nofile=100:200 box sh -c 'ulimit -n'
is "docker: --ulimit of more than the ring's" "4096" "${run[@]}" --ulimit nofile=1048576 box sh -c 'ulimit -n'
is "docker: --hostname" "build-7" "${run[@]}" --hostname build-7 box /bin/busybox hostname
is "docker: --oom-score-adj" "700" "${run[@]}" --oom-score-adj 700 box cat /proc/self/oom_score_adj
is "docker: a filter of one's own" "mkdir: can't create directory '/tmp/x': Cannot assign requested address" "${run[@]}" --security-opt "seccomp=$work/filter.json" box mkdir /tmp/x
is "docker: no filter" "mount: permission denied" "${run[@]}" --security-opt seccomp=unconfined box mount -t tmpfs x /tmp
is "docker: a group above with less memory" "exit 137" "${run[@]}" --cgroup-parent "/$group/pod" box sh -c "$hungry"
is "docker: --tmpfs" "1048576" "${run[@]}" --tmpfs /data:size=1m --tmpfs /run/own box sh -c 'echo a >/run/own/x && dd if=/dev/zero of=/data/x bs=64k 2>/dev/null; wc -c </data/x'
is "docker: --init" "agentrun-init" "${run[@]}" --init box cat /proc/1/comm
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
is "docker kill -s STOP" "exit 0" "${docker[@]}" kill -s STOP web
is "agentrun ps says so" "frozen" "$bin/agentrun" ps
is "docker kill -s CONT" "exit 0" "${docker[@]}" kill -s CONT web
is "agentrun ps has it" "agentrun" bash -c "'$bin/agentrun' ps | grep -q running && echo agentrun"
is "agentrun kill ends it" "exit 0" bash -c "'$bin/agentrun' ps -q | xargs '$bin/agentrun' kill"
is "docker wait" "exit 0" "${docker[@]}" wait web
is "docker rm" "exit 0" "${docker[@]}" rm web
is "docker run -t" "/dev/pts/" script -qec "${docker[*]} run --rm -it --network none --runtime agentrun-ring2 box ls -l /proc/self/fd/0" /dev/null

# networks of Docker's: what the list has is reached by the gateway, and nothing else by anything
"${docker[@]}" network create net >/dev/null
"${docker[@]}" run -d --name web --network net --network-alias other box httpd -f -p 80 -h /srv >/dev/null
at=$("${docker[@]}" inspect -f '{{.NetworkSettings.Networks.net.IPAddress}}' web)
for ring in 2 3; do
	run=("${docker[@]}" run --rm --network net --runtime "agentrun-ring$ring" box)
	[[ $ring == 2 ]] && want="a page" || want="web:80 (ring_has_no_egress)"
	is "docker network, ring $ring: a name of its own" "$want" "${run[@]}" wget -q -O - http://web/
	is "docker network, ring $ring: a name that isn't listed" "403 Forbidden" "${run[@]}" wget -q -O - http://other/
	is "docker network, ring $ring: past the gateway" "exit 1" "${run[@]}" nc -w 2 "$at" 81
done
run=("${docker[@]}" run --rm --runtime agentrun-ring2)
is "docker's own bridge, and a name of --add-host" "a page" "${run[@]}" --add-host "web:$at" box wget -q -O - http://web/
is "docker: a server" "exit 0" "${docker[@]}" run -d --name peer --network net -p 9000:8000 --runtime agentrun-ring2 box httpd -f -p 8000 -h /srv
is "docker --network container:peer" "a page" "${run[@]}" --network container:peer box wget -q -O - http://web/
is "docker --network container:peer: not its loopback" "127.0.0.1:8000 (own_address)" "${run[@]}" --network container:peer box wget -q -O - http://127.0.0.1:8000/
inside=(nsenter -t "$daemon" -n)
# shellcheck disable=SC2016 # the inner shell's
get=("${inside[@]}" bash -c '(exec 3<>/dev/tcp/127.0.0.1/9000; printf "GET / HTTP/1.0\r\n\r\n" >&3; cat <&3) 2>/dev/null | grep "a page" || echo nothing')
is "docker -p leads nowhere by itself" "nothing" "${get[@]}"
is "docker: another container doesn't reach it either" "502 Bad Gateway" "${run[@]}" --network net box wget -q -O - http://peer:8000/
is "agentrun port publish" ":8000" bash -c "'$bin/agentrun' ps -q | xargs -I{} '$bin/agentrun' port publish {} 8000 --to 0.0.0.0:8000 --anywhere --no-token"
is "docker -p, once it is published" "a page" "${get[@]}"
is "docker: another container, once it is published" "a page" "${run[@]}" --network net box wget -q -O - http://peer:8000/
"${docker[@]}" rm -f web peer >/dev/null

# two agents of one composition, beside a server of runc's
cat >"$work/compose.yml" <<-EOF
	services:
	  web: {image: box, command: [httpd, -f, -p, "80", -h, /srv], stop_signal: KILL, cgroup_parent: /$group}
	  one: &agent
	    image: box
	    runtime: agentrun-ring2
	    cgroup_parent: /$group
	    depends_on: [web]
	    command: [sh, -c, "id; wget -q -O - http://web/; wget -q -O - http://other/; mkdir /bin/x; mount -t tmpfs x /tmp; trap 'exit 3' TERM; while :; do sleep 0.1; done"]
	  two:
	    <<: *agent
	  demands: {image: box, runtime: agentrun-ring2, privileged: true, command: ["true"], profiles: [never]}
EOF
is "compose up" "exit 0" "${compose[@]}" up -d
for service in one two; do # until it has said the last of it
	for _ in $(seq 100); do [[ $("${compose[@]}" logs "$service" 2>&1) != *"permission denied"* ]] || break; sleep 0.2; done
done
for service in one two; do
	for line in "uid=1000" "a page" "403 Forbidden" "Read-only file system" "mount: permission denied"; do
		is "compose logs $service: $line" "$line" "${compose[@]}" logs "$service"
	done
	is "compose exec $service" "uid=1000" "${compose[@]}" exec -T "$service" id
	is "compose exec $service: exit code" "exit 5" "${compose[@]}" exec -T "$service" sh -c 'exit 5'
	is "compose exec $service: the same refusals" "Read-only file system" "${compose[@]}" exec -T "$service" mkdir /bin/x
done
is "compose: a service that demands more" "demands what no ring gives" "${compose[@]}" run --rm demands
is "compose pause" "Paused" bash -c "${compose[*]} pause one >/dev/null 2>&1; ${compose[*]} ps"
is "compose unpause" "exit 0" "${compose[@]}" unpause one
is "compose stop: its exit code" "Exit 3" bash -c "${compose[*]} stop two >/dev/null 2>&1; ${compose[*]} ps"
is "compose start" "exit 0" "${compose[@]}" start two
is "compose down" "exit 0" "${compose[@]}" down
is "compose: nothing is left" "nothing" bash -c "${docker[*]} ps -aq | grep . || '$bin/agentrun' ps -q | grep . || echo nothing"

for ring in 2 3; do
	run=("${podman[@]}" --runtime "$bin/agentrun-ring$ring" run --rm --network none --cgroup-parent "/$group" box)
	is "podman, ring $ring: exit code" "exit 7" "${run[@]}" sh -c 'exit 7'
	is "podman, ring $ring: who it is" "uid=1000 gid=1000" "${run[@]}" sh -c 'exec id'
done
podrun=("${podman[@]}" --runtime "$bin/agentrun-ring2")
is "podman: detached" "exit 0" "${podrun[@]}" run -d --name pod --network none --cgroup-parent "/$group" box sleep 100
is "podman: a filter of one's own" "Cannot assign requested address" "${podrun[@]}" run --rm --network none --cgroup-parent "/$group" --security-opt "seccomp=$work/filter.json" box mkdir /tmp/x
is "podman: a group above with less memory" "exit 137" "${podrun[@]}" run --rm --network none --cgroup-parent "/$group/pod" box sh -c "$hungry"
is "podman: --read-only" "written" "${podrun[@]}" run --rm --network none --cgroup-parent "/$group" --read-only box sh -c 'echo a >/var/tmp/x && echo written'
is "podman exec" "uid=1000" "${podrun[@]}" exec pod id
is "podman: annotation" "above the handler's ring" "${podrun[@]}" run --rm --network none --cgroup-parent "/$group" --annotation agentrun.ring=1 box true
is "podman: privileged is refused" "demands what no ring gives" "${podrun[@]}" run --rm --network none --cgroup-parent "/$group" --privileged box true
is "podman stop" "exit 0" "${podrun[@]}" stop -t 1 pod
is "podman rm" "exit 0" "${podrun[@]}" rm -f pod
# networks of Podman's (netavark), in the namespace of the daemon above. Podman hands on none of its environment
printf '#!/bin/sh\nexport AGENTRUN_STATE_DIR=%s AGENTRUN_RUN_DIR=%s XDG_CONFIG_HOME=%s\nexec "%s" "$@"\n' "$work/state" "$work/run" "$work/config" "$bin/agentrun-ring2" >"$work/agentrun-ring2"
chmod +x "$work/agentrun-ring2"
printf '[network]\nnetwork_backend = "netavark"\nnetwork_config_dir = "%s"\n' "$work/networks" >"$work/containers.conf"
netpod=(env "CONTAINERS_CONF=$work/containers.conf" "${inside[@]}" "${podman[@]}" --runtime)
"${netpod[@]}" runc network create net >/dev/null
is "podman network: a server" "exit 0" "${netpod[@]}" runc run -d --name web --network net --network-alias other --cgroup-parent "/$group" --ulimit nofile=1024 --ulimit nproc=1024 box httpd -f -p 80 -h /srv
run=("${netpod[@]}" "$work/agentrun-ring2" run --rm --cgroup-parent "/$group")
is "podman network: a name of its own" "a page" "${run[@]}" --network net box wget -q -O - http://web/
is "podman network: a name that isn't listed" "other:80 (not_listed)" "${run[@]}" --network net box wget -q -O - http://other/
is "podman's own network" "uid=1000" "${run[@]}" box id
is "podman --network container:web: the other's address is its own" "web:80 (own_address)" "${run[@]}" --network container:web box wget -q -O - http://web/
is "podman --network host is refused" "the host's network namespace" "${run[@]}" --network host box true
"${netpod[@]}" runc rm -f -t 0 -a >/dev/null
"${netpod[@]}" runc network rm net >/dev/null

# containerd alone, by its own client
cat >"$work/containerd.toml" <<-EOF
	version = 2
	root = "$work/containerd/root"
	state = "$work/containerd/state"
	disabled_plugins = ["io.containerd.grpc.v1.cri"]
	[grpc]
	  address = "$work/containerd.sock"
EOF
serve() {
	containerd -c "$work/containerd.toml" >>"$work/containerd.log" 2>&1 &
	containerd=$!
	for _ in $(seq 100); do "${ctr[@]}" version >/dev/null 2>&1 && break; sleep 0.1; done
}
crash() {
	kill -9 "$containerd"
	wait "$containerd" 2>/dev/null || true
}
shim() { pgrep -f "^[^ ]*containerd-shim-runc-v2 .*-id $1 -address $work/containerd.sock"; }
over=(bash -c "for _ in \$(seq 100); do '$bin/agentrun' ps -q | grep -q . || { echo it is over; break; }; sleep 0.1; done")
serve
"${docker[@]}" save -o "$work/box.tar" box
"${ctr[@]}" image import "$work/box.tar" >/dev/null
on=(--runc-root "$work/runc" --runc-binary "$bin/agentrun-ring2") box=$("${ctr[@]}" image ls -q)
for ring in 2 3; do
	run=("${ctr[@]}" run --rm --runc-root "$work/runc" --runc-binary "$bin/agentrun-ring$ring" "$box" one)
	is "containerd, ring $ring: exit code" "exit 7" "${run[@]}" sh -c 'exit 7'
	is "containerd, ring $ring: who it is" "uid=1000 gid=1000" "${run[@]}" sh -c 'exec id'
	is "containerd, ring $ring: its root is read-only" "Read-only file system" "${run[@]}" sh -c 'echo x >/bin/x'
done
run=("${ctr[@]}" run --rm "${on[@]}")
is "containerd: environment" "A=b" "${run[@]}" --env A=b "$box" one env
is "containerd: limits" "MemTotal:          65536 kB" "${run[@]}" --memory-limit 67108864 "$box" one cat /proc/meminfo
is "containerd: input" "hello" bash -c "echo hello | ${run[*]} $box one head -n 1" # cat can wait for ever, with runc, too: ctr loses an end that comes early
is "containerd: its own filter" "uid=1000" "${run[@]}" --seccomp "$box" one id
is "containerd: a group above with less memory" "exit 137" "${run[@]}" --cgroup "/$group/pod/one" "$box" one sh -c "$hungry"
is "containerd: privileged is refused" "demands what no ring gives" "${run[@]}" --privileged "$box" one true
is "containerd: the host's network is refused" "the host's network namespace" "${run[@]}" --net-host "$box" one true
is "containerd: a folder of the host's is refused" 'the host'"'"'s "/etc"' "${run[@]}" --mount type=bind,src=/etc,dst=/x,options=rbind:ro "$box" one true
is "containerd: a terminal" "/dev/pts/" script -qec "${run[*]} -t $box one ls -l /proc/self/fd/0" /dev/null
is "containerd: detached" "exit 0" "${ctr[@]}" run -d "${on[@]}" "$box" web sleep 1000
is "ctr tasks ls" "RUNNING" "${ctr[@]}" tasks ls
is "ctr tasks exec" "uid=1000" "${ctr[@]}" tasks exec --exec-id e1 web id
is "ctr tasks exec: exit code" "exit 5" "${ctr[@]}" tasks exec --exec-id e2 web sh -c 'exit 5'
is "ctr tasks pause" "exit 0" "${ctr[@]}" tasks pause web
is "ctr tasks ls has it" "PAUSED" "${ctr[@]}" tasks ls
is "ctr tasks resume" "exit 0" "${ctr[@]}" tasks resume web
is "ctr tasks kill" "exit 0" "${ctr[@]}" tasks kill -s SIGKILL web
is "it is over" "it is over" "${over[@]}"
is "ctr tasks rm" "exit code 137" "${ctr[@]}" tasks rm web
is "ctr containers rm" "exit 0" "${ctr[@]}" containers rm web
for state in running paused; do
	is "containerd: one that is $state" "exit 0" "${ctr[@]}" run -d "${on[@]}" "$box" left sleep 1000
	[[ $state == running ]] || "${ctr[@]}" tasks pause left
	kill -9 "$(shim left)"
	is "the kill of its shim ends it" "it is over" "${over[@]}"
	is "ctr containers rm, after that" "exit 0" "${ctr[@]}" containers rm left
done
is "containerd: one that outlives it" "exit 0" "${ctr[@]}" run -d "${on[@]}" "$box" left sleep 1000
crash
serve
is "a new containerd finds it" "uid=1000" "${ctr[@]}" tasks exec --exec-id e3 left id
kill -9 "$(shim left)"
crash
serve
is "without containerd and shim it ends when there is a containerd again" "it is over" "${over[@]}"
is "ctr containers rm, after both" "exit 0" "${ctr[@]}" containers rm left
is "no group of ours is left in the pod" "none" bash -c "ls -d $pod/agentrun 2>/dev/null || echo none"
is "nothing is left" "none" bash -c "'$bin/agentrun' ps -q | grep . || echo none"

printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
