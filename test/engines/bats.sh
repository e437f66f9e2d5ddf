#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# runc's own tests, and those of Podman's system tests that are about the runtime, first on Debian's runc and then on agentrun-oci. What each comes to
# must be as bats.txt has it, and where the two differ a line there says why. FILE… runs some (runc/exec, podman/080-pause); --update writes bats.txt and
# keeps the reasons that are people's. KEEP=FOLDER keeps what the tests said.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cache=$PWD/.cache/bats list=$PWD/test/engines/bats.txt update=
if [[ ${1:-} == --update ]]; then update=1; shift; fi
declare -A module=([runc]=github.com/opencontainers/runc@v1.1.5 [podman]=github.com/containers/podman/v4@v4.3.1)
declare -A tests=([runc]=tests/integration [podman]=test/system)

# A rootfs as the tests expect: a shell, its tools, and the files that they look into.
rootfs() {
	mkdir -p "$1"/{bin,dev,etc,home/podman,lib,media,mnt,opt,proc,root,run,sbin,srv,sys,tmp,usr/bin,usr/sbin,var/log,var/spool}
	cp /bin/busybox "$1/bin/"
	printf '#!/bin/sh\nexec env\n' >"$1/bin/printenv"
	chmod 0755 "$1/bin/printenv"
	for name in $(busybox --list); do [[ $name == busybox ]] || ln -sf busybox "$1/bin/$name"; done
	ln -s ../../bin/busybox "$1/usr/bin/nsenter"
	ln -s ../proc/mounts "$1/etc/mtab"
	echo root:x:0:0:root:/root:/bin/sh >"$1/etc/passwd"
	printf 'nobody:x:65534:65534:nobody:/:/bin/false\n' >>"$1/etc/passwd"
	printf 'root:x:0:\nnobody:x:65534:\n' >"$1/etc/group"
	echo VERSION_ID=stand-in >"$1/etc/os-release"
	chmod 1777 "$1/tmp"
}
if [[ ! -e $cache/done ]]; then # modules of their own: nothing of them is agentrun's
	rm -rf "$cache"
	mkdir -p "$cache"
	for of in "${!module[@]}"; do
		from=$(cd "$cache" && GOFLAGS=-mod=mod go mod download -json "${module[$of]}" | jq -r .Dir)
		cp -r "$from" "$cache/$of"
	done
	chmod -R u+wx "$cache" # a module has no bits of execution
	(cd "$cache/runc" && for helper in recvtty sd-helper seccompagent; do
		GOFLAGS=-mod=mod go build -tags seccomp -o "contrib/cmd/$helper/$helper" "./contrib/cmd/$helper"
	done)
	rootfs "$cache/rootfs"
	for image in busybox debian; do
		tar -C "$cache/rootfs" -cf "$cache/runc/tests/integration/testdata/$image-$(go env GOARCH).tar.xz" . # tar looks at what it is
	done
	touch "$cache/done"
fi

work=$(mktemp -d /var/tmp/agentrun-bats-XXXXXX)
export AGENTRUN_STATE_DIR=$work/state AGENTRUN_RUN_DIR=$work/run TMPDIR=$work/tmp
mkdir -m 0700 "$work/state" "$work/run"
mkdir -m 1777 "$work/tmp"
mkfifo "$work/quiet"
exec 3<>"$work/quiet" # input that neither comes nor ends
leftovers() { pgrep -f "$work/" | xargs -r kill -9 2>/dev/null || true; } # monitors of containers, recvtty
finish() {
	code=$?
	for runtime in runc agentrun; do "$work/podman-$runtime" rm -fa -t 0 >/dev/null 2>&1 || true; done
	bin/agentrun ps -q 2>/dev/null | xargs -r bin/agentrun kill >/dev/null || true
	leftovers
	grep -o " ${work}[^ ]*" /proc/mounts | sort -r | xargs -r umount -l 2>/dev/null || true
	find /sys/fs/cgroup -depth -type d \( -path '*/runc-cgroups-integration-test*' -o -path '*/libpod_parent*' \) -exec rmdir {} + 2>/dev/null || true
	for at in /sys/fs/cgroup/*/"libpod_parent"; do # podman's, of controllers that this machine doesn't have
		[[ $(stat -f -c %T "$at" 2>/dev/null) != tmpfs ]] || rm -rf "$at"
	done
	find /sys/fs/cgroup -xdev -path '*/libpod_parent*' -delete 2>/dev/null || true # of controllers that no hierarchy has: plain files
	rm -rf "$work" /var/tmp/myruntime* # the second is a test's of Podman
	exit $code
}
trap finish EXIT

ln -sf agentrun-oci bin/agentrun-ring2
# runc's tests begin with a bundle that `runc spec` writes, which is not a runtime's business.
cat >"$work/agentrun" <<EOF
#!/bin/sh
for word; do [ "\$word" != spec ] || exec runc "\$@"; done
exec $PWD/bin/agentrun-ring2 "\$@"
EOF
ln -s "$(command -v runc)" "$work/runc"
# Podman: no network but where a test asks for one, and limits of open files that a machine without CAP_SYS_RESOURCE gives.
cat >"$work/containers.conf" <<-EOF
	[containers]
	netns = "none"
	default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
	[engine]
	cgroup_manager = "cgroupfs"
	events_logger = "file"
EOF
export CONTAINERS_CONF=$work/containers.conf
export PODMAN_TEST_IMAGE_REGISTRY=localhost
declare -A as=([runc]=$(command -v runc) [agentrun]=$PWD/bin/agentrun-ring2)
for runtime in runc agentrun; do
	cat >"$work/podman-$runtime" <<-EOF
		#!/bin/sh
		exec podman --root $work/$runtime-root --runroot $work/$runtime-run --runtime ${as[$runtime]} "\$@"
	EOF
done
chmod 0755 "$work/agentrun" "$work"/podman-*
# Podman's tests begin with their image, which they fetch if it isn't there; some remove it.
image() {
	local runtime=$1 name
	# shellcheck disable=SC1091 # the name is the tests' own
	name=$(source "$cache/podman/test/system/helpers.bash" && echo "$PODMAN_TEST_IMAGE_FQN")
	if [[ ! -e $work/image.tar ]]; then
		cp -r "$cache/rootfs" "$work/image"
		echo "${name##*:}" >"$work/image/home/podman/testimage-id"
		touch --date=@1600000000 "$work/image/home/podman/testimage-id"
		tar -C "$work/image" -cf "$work/image.tar" .
	fi
	"$work/podman-$runtime" image exists "$name" ||
		"$work/podman-$runtime" import -q --change WORKDIR=/home/podman --change 'CMD ["/bin/echo", "This container is intended for podman CI testing"]' "$work/image.tar" "$name" >/dev/null
}

# results SUITE FILE RUNTIME: a line for each test: name, verdict, and what of the bundle is refused.
results() {
	local said=$work/$1-$2.$3 input=/dev/null run=(unshare --mount --propagation slave)
	if [[ $1 == podman ]]; then
		image "$3"
		run+=(--net bats --tap "$2.bats")
	else
		run=(script -qec "${run[*]} bats --tap $2.bats" /dev/null) # runc wants a terminal of its own
		input=$work/quiet
	fi
	: >"$said"
	(
		cd "$cache/$1/${tests[$1]}"
		export RUNC=$work/$3 PODMAN=$work/podman-$3 PODMAN_TIMEOUT=40 BATS_TEST_TIMEOUT=120
		! grep -qE '^\s*wait( #|$)' "$2.bats" || unset BATS_TEST_TIMEOUT # it would wait for that, too
		timeout -k 10 600 "${run[@]}"
	) >"$said" 2>&1 <"$input" 3<&- &
	local ran=$! tests
	while kill -0 $ran 2>/dev/null; do # a test that fails may leave a helper, which bats waits for when all are told
		sleep 0.5
		tests=$(sed -n 's/\r$//; s/^1\.\.//p' "$said")
		[[ -z $tests ]] || (($(grep -cE '^(not )?ok [0-9]' "$said") < tests)) || { sleep 2; leftovers; }
	done
	awk -v work="$work" '
		{ sub(/\r$/, "") }
		function tell() { if (name != "") print name "\t" verdict "\t" why }
		/^(not )?ok [0-9]+ / {
			tell()
			verdict = /^not/ ? "fail" : / # skip/ ? "skip" : "pass"
			name = $0
			why = ""
			sub(/^(not )?ok [0-9]+ /, "", name)
			sub(/ # (skip|timeout).*/, "", name)
			next
		}
		verdict == "fail" && match($0, /the bundle demands what no ring gives|is outside the range|unsafe root|linux\.seccomp\./) {
			verdict = "refused"
			why = substr($0, RSTART)
			sub(/the bundle demands what no ring gives: */, "", why)
			gsub(work "[^\", ]*", "…", why)
			sub(/ \(to allow.*/, "", why)
		}
		END { tell() }
	' "$said"
}

# compared FILE: a line for each of its tests: on runc, on agentrun, file, name, and what is refused.
compared() {
	for runtime in runc agentrun; do results "${1%/*}" "${1#*/}" "$runtime" >"$work/$runtime.results"; done
	awk -F'\t' -v OFS='\t' -v file="$1" '
		FILENAME == ARGV[1] { runc[$1] = $2; order[++n] = $1; next }
		{ agentrun[$1] = $2; why[$1] = $3; if (!($1 in runc)) { runc[$1] = "none"; order[++n] = $1 } }
		END { for (i = 1; i <= n; i++) print runc[order[i]], order[i] in agentrun ? agentrun[order[i]] : "none", file, order[i], why[order[i]] }
	' "$work/runc.results" "$work/agentrun.results"
}

if (($# == 0)); then
	# Left out: what specs, checkpoints, sshfs and systemd are for; of Podman's what is about images, builds, networks, Kubernetes and its own service, and
	# where nothing passes on runc either: pods want an image that is fetched.
	set -- runc/{cgroups,create,cwd,debug,delete,dev,events,exec,help,hooks,kill,list,mask,mounts,mounts_recursive,no_pivot,pause,ps,root,run} \
		runc/{seccomp,seccomp-notify,seccomp-notify-compat,start,start_detached,start_hello,state,tty,umask,update,userns,version} \
		podman/{030-run,032-sig-proxy,035-logs,040-ps,045-start,050-stop,055-rm,060-mount,065-cp,075-exec,080-pause,130-kill,160-volumes} \
		podman/{170-run-userns,190-run-ipcns,280-update}
fi
touch "$list"
bad=0
for file; do
	awk -F'\t' -v file="$file" '$3 == file' "$list" >"$work/held"
	for _ in 1 2 3; do # some wait for a second and hope, which on a busy host is not enough
		compared "$file" >"$work/now"
		[[ -z $update ]] || break
		! cmp -s <(cut -f1-4 "$work/held") <(cut -f1-4 "$work/now") || break
	done
	[[ -z ${KEEP:-} ]] || cp "$work/${file/\//-}".* "$KEEP/"
	if [[ -n $update ]]; then
		{
			awk -F'\t' -v file="$file" '$3 != file' "$list"
			awk -F'\t' -v OFS='\t' 'FILENAME == ARGV[1] { why[$4] = $5; next } $5 == "" && $1 != $2 { $5 = why[$4] } $1 == $2 { $5 = "" } 1' "$work/held" "$work/now"
		} | LC_ALL=C sort -s -t$'\t' -k3,3 >"$work/list"
		cp "$work/list" "$list"
	fi
	diff -u <(cut -f1-4 "$work/held") <(cut -f1-4 "$work/now") || bad=1
	awk -F'\t' '$1 != $2 && $5 == "" { print "no reason in test/engines/bats.txt: " $3 ": " $4; bad = 1 } END { exit bad }' <(awk -F'\t' -v file="$file" '$3 == file' "$list") || bad=1
	echo "$file: $(wc -l <"$work/now") tests, $(cut -f1 "$work/now" | grep -c pass) pass on runc, $(cut -f2 "$work/now" | grep -c pass) on agentrun"
done
((bad == 0))
