#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs one command in a fresh VM and ends with its exit code:
#
#   test/vm/run.sh [--payload DIR] [--results DIR] [--timeout SECONDS] [--silence SECONDS] -- COMMAND [ARG…]
#   test/vm/run.sh [--payload DIR] --shell
#
# The command runs as root in /payload (a copy of DIR) on Debian's kernel with
# cgroup v2 only, with TMPDIR=/work on ext4. Its output streams to our standard
# output; what it writes to /results comes back in --results DIR.
# Every run starts from the same disk: changes to it go to a throw-away overlay.
#
# Exit codes: the command's; 124 when the time is up; 123 when nothing came from the VM
# for --silence, or for 90 s in which its kernel says that it stands still (what its
# processors and qemu's threads do is then shown, and --results DIR has what had come,
# in output); 125 when the VM ended without telling one (the end of its console log is
# then shown).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() { sed -n '5,6s/^#   //p' "${BASH_SOURCE[0]}" >&2; exit 125; }
die() { echo "test/vm/run.sh: $*" >&2; exit 125; }

payload='' results='' timeout=600 silence='' timed_out='' stands='' shell='' env=()
while (($#)); do
	case $1 in
	--payload) payload=$2; shift 2 ;;
	--results) results=$2; shift 2 ;;
	--timeout) timeout=$2; shift 2 ;;
	--silence) silence=$2; shift 2 ;;
	--env) env+=("$2"); shift 2 ;;
	--shell) shell=1; shift ;;
	--) shift; break ;;
	*) usage ;;
	esac
done
[[ -n $shell || $# -gt 0 ]] || usage
[[ -z $payload || -d $payload ]] || die "--payload $payload: not a folder"
command -v qemu-system-x86_64 >/dev/null || die "qemu-system-x86_64 is missing: scripts/install-deps.sh installs it"

image=$("$here/build.sh") || die "no image to start"

work=$(mktemp -d "${TMPDIR:-/var/tmp}/agentrun-vm.XXXXXX")
qemu=''
# shellcheck disable=SC2317 # reached by the trap
cleanup() {
	if [[ -n $qemu ]]; then kill "$qemu" 2>/dev/null || true; fi
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

mkdir -p "$work/extra/.vm"
{
	# Quoted by the shell that will read it back, so arguments arrive as they were given.
	for e in "${env[@]+"${env[@]}"}"; do printf 'export %q\n' "$e"; done
	(($# == 0)) || printf '%q ' "$@"
	echo
} >"$work/extra/.vm/command"
tar -c -f "$work/payload.tar" -C "$work/extra" .vm
[[ -z $payload ]] || tar -r -f "$work/payload.tar" -C "$payload" .

# KVM only where a machine really has it: a /dev/kvm that opens may still not run a
# guest, and TCG is what CI has. AGENTRUN_VM_ACCEL=kvm asks for it.
accel=${AGENTRUN_VM_ACCEL:-tcg}
# For TCG a thread for each processor of the guest's (AGENTRUN_VM_CPUS): with two some of their time
# goes into waiting for each other. Five-level page tables only make software walks longer.
# shellcheck disable=SC2054 # the commas are qemu's
case $accel in
tcg) machine=(-accel tcg,thread=multi,tb-size=512 -cpu max,la57=off) ;;
kvm) machine=(-accel kvm -cpu host) ;;
*) die "AGENTRUN_VM_ACCEL=$accel: want tcg or kvm" ;;
esac

# mitigations=off: the guest runs nothing but our tests, and page-table isolation
# costs software emulation a TLB flush on every system call. No lsm= option: the suite is
# to meet Debian's own set. cgroup_no_v1 keeps a stray mount from bringing v1 back.
append="console=ttyS0 quiet loglevel=4 panic=-1 cgroup_no_v1=all mitigations=off random.trust_cpu=on"
common=(
	-nodefaults -no-user-config -display none -monitor none -no-reboot
	-M q35 "${machine[@]}" -smp "${AGENTRUN_VM_CPUS:-2}" -m "${AGENTRUN_VM_MEMORY:-3G}" -nic none
	-kernel "$image/vmlinuz" -initrd "$image/initrd"
	-drive "file=$image/rootfs.ext4,format=raw,if=virtio,snapshot=on,cache=unsafe"
	-drive "file=$work/payload.tar,format=raw,if=virtio,readonly=on"
	-device virtio-rng-pci -device virtio-serial-pci
)
# The overlay of snapshot=on is made in TMPDIR; /tmp may be a tmpfs of little room.
export TMPDIR=$work

if [[ -n $shell ]]; then
	qemu-system-x86_64 "${common[@]}" -serial stdio -append "$append agentrun.shell"
	exit 0
fi

# A pipe of our own between qemu and our output: qemu truncates a file it is given, and
# a reader tells us when everything has come through. Should qemu not even start, the
# reader sees the end at once.
mkfifo "$work/output" "$work/monitor.in" "$work/monitor.out"
tee "$work/seen" <"$work/output" &
reader=$!
exec 3>"$work/output"
qemu-system-x86_64 "${common[@]}" \
	-serial "file:$work/console.log" -append "$append" \
	-chardev "file,id=output,path=/dev/stdout" -device virtserialport,chardev=output,name=agentrun.output \
	-chardev "file,id=results,path=$work/results.tar" -device virtserialport,chardev=results,name=agentrun.results \
	-chardev "pipe,id=monitor,path=$work/monitor" -mon chardev=monitor \
	-chardev "file,id=status,path=$work/status" -device virtserialport,chardev=status,name=agentrun.status \
	</dev/null >&3 3>&- 2>"$work/qemu.log" &
qemu=$!
exec 3>&-
deadline=$((SECONDS + timeout))
# What can be seen of a machine that stands still: from the inside nobody answers any more.
looks() {
	local t
	exec 4<>"$work/monitor.in" 5<>"$work/monitor.out"
	echo "info registers -a" >&4
	timeout 5 cat <&5 | grep -aE '^(CPU#|RIP|EFL)' || true
	for t in /proc/"$qemu"/task/*; do
		echo "$(cat "$t/comm") in $(cat "$t/wchan"), $(cut -d' ' -f3,14,15 "$t/stat")"
	done
}
came=0 since=$SECONDS
while kill -0 "$qemu" 2>/dev/null; do
	if ((SECONDS >= deadline)); then
		timed_out=1
		kill -9 "$qemu"
		break
	fi
	size=$(stat -c %s "$work/seen" 2>/dev/null || echo 0)
	if ((size != came)); then came=$size since=$SECONDS; fi
	quiet=$((SECONDS - since))
	# A kernel that says of itself that it has stood still for so long doesn't come back.
	if [[ -n $silence ]] && { ((quiet >= silence)) || { ((quiet >= 90)) && grep -aqE 'soft lockup.* stuck for [0-9]{3,}s' "$work/console.log"; }; }; then
		stands=1
		looks >&2 || true
		kill -9 "$qemu"
		break
	fi
	sleep 0.2
done
wait "$qemu" 2>/dev/null || true
qemu=''
wait "$reader"

if [[ -n $results ]]; then
	mkdir -p "$results"
	cp "$work/console.log" "$results/console.log" 2>/dev/null || true
	cp "$work/seen" "$results/output" 2>/dev/null || true
	[[ ! -s $work/results.tar ]] || tar -x -C "$results" -f "$work/results.tar"
fi
grep -a '^guest-init: left behind' "$work/console.log" >&2 2>/dev/null || true
if [[ -s $work/status ]]; then
	exit "$(cat "$work/status")"
fi
{
	tail -n 40 "$work/console.log" 2>/dev/null || true
	cat "$work/qemu.log"
} >&2
if [[ -n $stands ]]; then
	echo "test/vm/run.sh: nothing came from the VM for $quiet s" >&2
	exit 123
fi
if [[ -n $timed_out ]]; then
	echo "test/vm/run.sh: stopped after $timeout s" >&2
	exit 124
fi
die "the VM ended without an exit code"
