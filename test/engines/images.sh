#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Images between agentrun and what others build and serve them with: Debian's buildah, docker-registry and podman. All of it in a network
# namespace that has but a loopback, and in one folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[[ -n ${AGENTRUN_OWN_NET:-} ]] || AGENTRUN_OWN_NET=1 exec unshare --net "$0"
ip link set lo up

bin=$PWD/bin
work=/run/agentrun-images-$$ # podman takes no upper case in a path
mkdir -m 0700 "$work"
export AGENTRUN_STATE_DIR=$work/state AGENTRUN_RUN_DIR=$work/run
mkdir -m 0700 "$work/state" "$work/run"
passed=0 failed=0

finish() {
	code=$?
	[[ -z ${registry:-} ]] || { kill "$registry" 2>/dev/null || true; wait "$registry" 2>/dev/null || true; }
	"${podman[@]}" rm -f -a >/dev/null 2>&1 || true
	"${buildah[@]}" rm -a >/dev/null 2>&1 || true
	for _ in $(seq 50); do # what it runs in a step may take a moment to be gone
		[[ -n $(find /sys/fs/cgroup -depth -type d -name 'buildah-buildah*' -exec rmdir {} + -print 2>/dev/null) ]] || break
		sleep 0.1
	done
	grep -o " ${work}[^ ]*" /proc/mounts | sort -r | xargs -r umount -l 2>/dev/null || true
	rm -rf "$work"
	exit $code
}
stored=(--root "$work/engine" --runroot "$work/engine-run" --storage-driver vfs)
buildah=(buildah "${stored[@]}")
podman=(podman "${stored[@]}" --cgroup-manager cgroupfs --runtime runc)
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

printf '%s\n' 'version: 0.1' "storage: {filesystem: {rootdirectory: $work/registry}}" 'http: {addr: "127.0.0.1:5000"}' >"$work/registry.yml"
docker-registry serve "$work/registry.yml" >"$work/registry.log" 2>&1 &
registry=$!
for _ in $(seq 100); do (: </dev/tcp/127.0.0.1/5000) 2>/dev/null && break; sleep 0.1; done

context=$work/context
mkdir -p "$context/bin"
cp /bin/busybox "$context/bin/"
for name in sh true id cat ls env rm mkdir echo sleep; do ln -s busybox "$context/bin/$name"; done
echo base >"$context/mark"
echo gone >"$context/gone"
cat >"$context/Dockerfile" <<'EOT'
FROM scratch
COPY bin /bin
COPY mark gone /etc/
RUN ["/bin/rm", "/etc/gone"]
RUN ["/bin/mkdir", "-p", "/srv/app"]
ENV COLOUR=blue
WORKDIR /srv/app
ENTRYPOINT ["/bin/cat"]
CMD ["/etc/mark"]
EOT

agentrun=$bin/agentrun
for format in oci docker; do
	image=127.0.0.1:5000/box:$format
	"${buildah[@]}" bud -q --isolation chroot --layers --format "$format" -t "box:$format" "$context" >/dev/null
	"${buildah[@]}" push -q --tls-verify=false "box:$format" "docker://$image"
	is "$format: pull" "exit 0" "$agentrun" image pull "$image"
	is "$format: what it is made for" "base" "$agentrun" exec --image "$image" --
	is "$format: a command instead" "No such file or directory" "$agentrun" exec --image "$image" -- /etc/gone
	is "$format: its folder" "/srv/app" "$agentrun" exec --image "$image" --no-entrypoint -- sh -c 'ls -ld /proc/self/cwd'
	is "$format: its variables" "COLOUR=blue" "$agentrun" exec --image "$image" --no-entrypoint -- env
	is "$format: read-only" "Read-only file system" "$agentrun" exec --image "$image" --no-entrypoint --ring 2 --on-breach record -- sh -c 'echo x >/etc/mark'
	is "$format: looked at" '["/bin/rm", "/etc/gone"]' "$agentrun" image show "$image"
	is "$format: pulled again" "exit 0" "$agentrun" image pull "$image"
	"${buildah[@]}" push -q "box:$format" "$format-archive:$work/$format.tar"
	is "$format: the same from an archive" "$("${buildah[@]}" inspect --type image --format '{{.FromImageID}}' "box:$format")" "$agentrun" image import "$work/$format.tar"
done
is "a tag that isn't there" "exit 1" "$agentrun" image pull 127.0.0.1:5000/box:none
is "a registry that is gone" "exit 1" "$agentrun" image pull 127.0.0.1:5001/box:oci

# And back: what a kept sandbox has changed, as a base of others.
is "a sandbox of it" "exit 0" "$agentrun" create --ring 1 --no-entrypoint --image 127.0.0.1:5000/box:oci --name dev -- /bin/sh -c 'echo changed >/etc/mark; sleep 600'
is "started" "exit 0" "$agentrun" start dev
is "its work" "changed" bash -c "for _ in \$(seq 100); do '$agentrun' exec --in dev -- cat /etc/mark | grep changed && break; sleep 0.1; done"
is "stopped" "exit 0" "$agentrun" stop dev
is "committed" "exit 0" "$agentrun" commit --oci-layout "$work/layout" dev dev:1
id=$("${podman[@]}" pull -q "oci:$work/layout")
is "podman has it" "exit 0" "${podman[@]}" image exists "$id"
is "buildah builds on it" "exit 0" bash -c "c=\$(${buildah[*]} from $id) && ${buildah[*]} config --entrypoint '[\"/bin/cat\"]' --cmd /etc/mark \$c && ${buildah[*]} commit -q \$c next && ${buildah[*]} push -q --tls-verify=false next docker://127.0.0.1:5000/next:1"
is "and agentrun runs that" "changed" "$agentrun" exec --pull missing --image 127.0.0.1:5000/next:1 --
is "removed" "exit 0" "$agentrun" rm dev

printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
