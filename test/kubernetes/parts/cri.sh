# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2154
#
# containerd's CRI alone, by crictl.

# container NAME COMMAND [MORE]: a container's configuration, with the limits that kubelet would write, and MORE of "linux.security_context".
container() {
	printf '{"metadata": {"name": "%s"}, "image": {"image": "localhost/agent:1"}, "log_path": "%s.log", "command": ["sh", "-c", "%s"], "mounts": [%s],
		"linux": {"resources": {"memory_limit_in_bytes": 67108864, "cpu_period": 100000, "cpu_quota": 20000}, "security_context": {%s "namespace_options": {"pid": 1},
		"masked_paths": ["/proc/kcore"], "readonly_paths": ["/proc/sys"]}}}' "$1" "$1" "$2" "${4-}" "${3-}"
}

# pod NAME [NAMESPACES]: a pod's.
pod() {
	printf '{"metadata": {"name": "%s", "namespace": "default", "uid": "uid-of-%s"}, "log_directory": "%s/logs/%s",
		"linux": {"cgroup_parent": "/%s/pod-%s", "security_context": {"namespace_options": {%s}}}}' "$1" "$1" "$work" "$1" "$group" "$1" "${2-}"
}

# cri NAME RING COMMAND [MORE] [MOUNTS]: a pod with one container, whose id is printed.
cri() {
	mkdir -p "$work/logs/$1" "$memory/$group/pod-$1"
	pod "$1" >"$work/$1.pod"
	container main "$3" "${4-}" "${5-}" >"$work/$1.container"
	local id made
	id=$(crictl runp --runtime "agentrun-ring$2" "$work/$1.pod") && made=$(crictl create "$id" "$work/$1.container" "$work/$1.pod") && crictl start "$made"
}

idle="echo hello; exec sleep 1000"
for ring in 3 2; do
	id=$(cri one $ring "$idle")
	soon "ring $ring: logs" "hello" crictl logs "$id"
	is "ring $ring: ps" "Running" crictl ps
	is "ring $ring: who it is" "uid=1000 gid=1000" crictl exec "$id" id
	is "ring $ring: its root is read-only" "Read-only file system" crictl exec "$id" sh -c "echo x >/bin/x"
	is "ring $ring: exec's exit code" "exit code 5" crictl exec "$id" sh -c "exit 5"
	is "ring $ring: agentrun ps has it, and nothing that holds the pod's place" "exit 0" bash -c "[[ \$('$bin/agentrun' ps -q | wc -l) == 1 ]]"
	is "ring $ring: its limit, in the pod's group" "67108864" bash -c "cat $memory/$group/pod-one/agentrun/*/$limit"
	is "ring $ring: its supervisor, and so its gateway, is in the pod's network" "exit 0" bash -c \
		"[[ \$(stat -Lc %i /run/netns/cni-*) == \$(stat -Lc %i /proc/\$(pgrep -f '^[^ ]*/agentrun exec')/ns/net) ]]"
	is "ring $ring: the agent is in another" "exit 0" bash -c "[[ \$(stat -Lc %i /run/netns/cni-*) != \$(stat -Lc %i /proc/\$(pgrep -f '^sleep 1000')/ns/net) ]]"
	is "ring $ring: stop" "exit 0" crictl stop -t 1 "$id"
	is "ring $ring: its status" '"exitCode": 143' crictl inspect "$id"
	is "ring $ring: rm" "exit 0" crictl rm "$id"
	is "ring $ring: stopp" "exit 0" crictl stopp "$(crictl pods -q)"
	is "ring $ring: rmp" "exit 0" crictl rmp -a
done

mkdir -p "$memory/$group/pod-two"
echo 40M >"$memory/$group/pod-two/$limit"
id=$(cri two 3 "exec tail -c 60000000 /dev/zero")
soon "a pod's limit that is less than the container's" '"exitCode": 137' crictl inspect "$id"
crictl rmp -fa >/dev/null 2>&1

# refused NAME WANT ARGUMENTS OF cri
refused() {
	is "refused: $1" "$2" cri "no-$((passed + failed))" 3 "$idle" "${@:3}"
	crictl rmp -fa >/dev/null 2>&1
}
# of NAMESPACES: a pod alone
of() {
	pod no "$1" >"$work/no.pod"
	crictl runp --runtime agentrun-ring3 "$work/no.pod"
}
is "refused: the host's processes" "the host's pid namespace" of '"pid": 2'
is "refused: the host's network" "the host's network namespace" of '"network": 2'
crictl rmp -fa >/dev/null 2>&1
refused "a capability" 'capability \"CAP_SYS_ADMIN\"' '"capabilities": {"add_capabilities": ["SYS_ADMIN"]},'
refused "a folder of the host's" 'the host'"'"'s \"/etc\"' "" '{"host_path": "/etc", "container_path": "/data"}'
refused "a volume in /tmp" 'on \"/tmp/x\", where the sandbox has its own' "" "{\"host_path\": \"$work\", \"container_path\": \"/tmp/x\"}"
find /sys/fs/cgroup -depth -path "*/$group/pod-*" -type d -exec rmdir {} + # as kubelet does
gone "nothing is left of them"
