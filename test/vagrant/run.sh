#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the suite of a payload (test/run.sh makes it) in a machine that Vagrant brings up from the box of box.sh:
#
#   test/vagrant/run.sh PAYLOAD [NAME=VALUE…]
#
# What the suite prints goes to standard output, all else to standard error. libvirt's daemons, their network and their folders
# live in namespaces of this script's own: nothing of them is seen on the host, and nothing outlives it. Needs root.
#
# Exit codes: 0 when the suite came to its end; 125 when the machine didn't come up (libvirt's reason is shown).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=$(realpath -m "${AGENTRUN_CACHE:-$root/.cache}/vagrant")
die() { echo "test/vagrant/run.sh: $*" >&2; exit 125; }

if [[ -z ${AGENTRUN_VAGRANT_APART:-} ]]; then
	[[ -d ${1:-} ]] || die "usage: test/vagrant/run.sh PAYLOAD [NAME=VALUE…]"
	[[ $(id -u) == 0 ]] || die "it needs root"
	for tool in vagrant libvirtd virsh qemu-system-x86_64 dnsmasq rsync; do
		PATH=$PATH:/usr/sbin command -v "$tool" >/dev/null || die "$tool is missing: make test-vagrant installs it"
	done
	AGENTRUN_BOX=$("$here/box.sh") || die "no box to start"
	AGENTRUN_VAGRANT_APART=$(mktemp -d "$cache/run.XXXXXX")
	export AGENTRUN_BOX AGENTRUN_VAGRANT_APART
	# Whoever is being killed may write for a moment more.
	trap 'for _ in 1 2 3 4 5; do rm -rf --one-file-system "$AGENTRUN_VAGRANT_APART" 2>/dev/null && break; sleep 1; done' EXIT
	trap 'kill "$apart"; exit 130' INT TERM
	# When unshare ends, however it does, the kernel ends pid 1 of the namespace, and all with it.
	unshare --mount --propagation private --net --ipc --pid --fork --kill-child --mount-proc "${BASH_SOURCE[0]}" "$@" &
	apart=$!
	code=0
	wait "$apart" || code=$?
	exit "$code"
fi

payload=$1
shift
say() { echo "[vagrant] ${SECONDS}s $*" >&2; }
work=$AGENTRUN_VAGRANT_APART

# libvirt's folders, its network's too, are ours for the time; so is its configuration.
mkdir -p "$work"/{run,lib,log,etc,home,tmp,cachedir}
cp -a /etc/libvirt/. "$work/etc/"
cat >>"$work/etc/qemu.conf" <<-CONF
	user = "root"
	group = "root"
	security_driver = "none"
	cgroup_controllers = []
	namespaces = []
	stdio_handler = "file"
	remember_owner = 0
CONF
cat >"$work/etc/libvirtd.conf" <<-CONF
	auth_unix_rw = "none"
	unix_sock_rw_perms = "0700"
CONF
mount --bind "$work/etc" /etc/libvirt
mount -t tmpfs -o mode=0755 run /run
mkdir -p /var/lib/libvirt /var/log/libvirt /var/cache/libvirt
mount --bind "$work/lib" /var/lib/libvirt
mount --bind "$work/log" /var/log/libvirt
mount --bind "$work/cachedir" /var/cache/libvirt
mkdir -p "$work"/lib/{images,qemu,dnsmasq} "$work/log/qemu" /run/libvirt
ip link set lo up
# The payload is a disk, for a copy by ssh takes minutes under emulation. Nothing but a tar is on it.
tar -cf "$work/lib/images/payload.img" -C "$payload" .
libvirtd --daemon || die "libvirtd did not start"
for _ in {1..100}; do virsh -q -c qemu:///system version >/dev/null 2>&1 && break; sleep 0.1; done
virsh -q -c qemu:///system version >"$work/version" 2>&1 || die "libvirtd does not answer: $(tail -n 3 "$work/version")"

export VAGRANT_HOME=$work/home VAGRANT_DOTFILE_PATH=$work/dot VAGRANT_CWD=$root VAGRANT_DEFAULT_PROVIDER=libvirt
export VAGRANT_CHECKPOINT_DISABLE=1 VAGRANT_BOX_UPDATE_CHECK_DISABLE=1 TMPDIR=$work/tmp HOME=$work/home
vagrant box add --name agentrun/local --provider libvirt "$AGENTRUN_BOX/agentrun.box" >&2 || die "vagrant does not take the box"
say "bringing the machine up"
if ! vagrant up --provider=libvirt --no-provision >&2; then
	tail -n 20 "$work"/log/qemu/*.log >&2 2>/dev/null || true
	die "vagrant up did not bring the machine up"
fi
say "up; running the suite"
settings=$(printf '%q ' TMPDIR=/work AGENTRUN_TEST_ELSEWHERE=1 "$@")
code=0
vagrant ssh --no-tty -c "sudo install -d -m 1777 /work && sudo mkdir /payload && sudo tar -x -C /payload -f /dev/vdb && cd /payload &&
	sudo env $settings bash -c 'ulimit -n 65536; exec bash suite.sh'" </dev/null || code=$?
say "the suite ended with $code"
vagrant destroy -f >&2 || true
exit "$code"
