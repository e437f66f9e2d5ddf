#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs what is missing on a Debian or Ubuntu machine, and nothing else:
#
#   scripts/install-deps.sh run     what `make run` builds and starts with
#   scripts/install-deps.sh test    the same, and what `make test` needs
#   scripts/install-deps.sh vagrant the first, and what `make test-vagrant` needs
#   scripts/install-deps.sh engines the first, and what `make test-engines` needs
#   scripts/install-deps.sh kubernetes the first, and what `make test-kubernetes` needs
#
# Quick and silent when everything is there. Go itself is taken from the distribution where that one is
# new enough; otherwise fetch-go.sh unpacks the pinned toolchain below .cache.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
die() { printf 'install-deps: %s\n' "$@" >&2; exit 1; }

set_=${1:-run}
# Pid 1 of the sandbox and what runs before Go are C; the agent of
# `make run` is Python and must be the system's own, since a ring shows only /usr.
packages=(gcc libc6-dev python3 ca-certificates git)
case $set_ in
run) ;;
test)
	packages+=(
		qemu-system-x86 debootstrap busybox-static e2fsprogs kmod cpio # the VM and its image
		libseccomp-dev pkg-config                                      # another opinion on filters, by cgo
		bubblewrap runc strace procps iproute2 util-linux              # peers to compare with, tools of the tests
		"libpython$(/usr/bin/python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo 3.11)-testsuite"
		curl python3-requests                                          # unmodified clients of the egress proxy
		squid tinyproxy-bin                                            # proxies to compare with
		shellcheck
		python3-pytest                                                 # of the programs that agents use all day
		podman                                                         # an engine that isn't ours reads our images
	)
	# Another Node.js, from a source the machine already has, is as good as Debian's.
	[[ -x /usr/bin/node || -x /usr/local/bin/node ]] || packages+=(nodejs)
	# vagrant validates its own file. Ubuntu has no package of either any more.
	if grep -qx ID=debian /etc/os-release; then packages+=(vagrant chromium); fi
	# It fetches the clients of test/npm; other sources of Node.js bring it along.
	command -v npm >/dev/null || packages+=(npm)
	;;
vagrant) packages+=(vagrant vagrant-libvirt libvirt-daemon-system libvirt-clients qemu-system-x86 qemu-utils dnsmasq-base debootstrap e2fsprogs rsync) ;;
engines) packages+=(docker.io docker-compose containerd podman netavark aardvark-dns runc busybox-static buildah docker-registry iproute2 bats jq gawk) ;; # the last three: make test-bats
kubernetes) packages+=(containernetworking-plugins runc busybox-static iproute2 iptables openssl procps util-linux) ;;
*) die "usage: install-deps.sh run|test|vagrant|engines|kubernetes" ;;
esac

want_go=$(awk '$1 == "go" {print $2}' "$root/go.mod")
# version_at_least HAVE WANT
version_at_least() { [[ $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n1) == "$2" ]]; }

export PATH=$root/.cache/go/bin:$PATH:/usr/local/go/bin
have_go=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null | sed 's/^go//' || true)
need_go=
if [[ -z $have_go ]] || ! version_at_least "$have_go" "${want_go%.0}"; then need_go=1; fi

missing=()
for p in "${packages[@]}"; do
	[[ $(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null) == installed ]] || missing+=("$p")
done

if ((${#missing[@]} == 0)) && [[ -z $need_go ]]; then exit 0; fi
command -v apt-get >/dev/null || die "no apt-get here; install by hand: ${missing[*]}"

apt=(apt-get -q -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120)
export DEBIAN_FRONTEND=noninteractive
update() { "${apt[@]}" update >&2 || echo "install-deps: apt-get update had errors; going on with the lists there are" >&2; }

# quietly COMMAND…: without starting services. Debian starts what it installs, and nobody who runs tests asked for a
# proxy on all interfaces. policy-rc.d is the file that maintainer scripts ask; one that is there already is kept.
quietly() {
	local policy=/usr/sbin/policy-rc.d
	if [[ -e $policy ]]; then
		"$@"
		return
	fi
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 0755 "$policy"
	# shellcheck disable=SC2064 # the path as it is now
	trap "rm -f '$policy'" EXIT
	"$@"
	rm -f "$policy"
	trap - EXIT
}

if [[ $(id -u) != 0 ]]; then
	((${#missing[@]} == 0)) || die "missing: ${missing[*]}" "run as root, or: sudo apt-get install ${missing[*]}"
else
	update
	if ((${#missing[@]} > 0)); then
		echo "install-deps: installing ${missing[*]}" >&2
		quietly "${apt[@]}" install --no-install-recommends "${missing[@]}" >&2
		# Nor at the next boot. A squid that was there before is none of the missing, and stays as it is.
		if [[ " ${missing[*]} " == *" squid "* ]] && command -v systemctl >/dev/null; then
			systemctl disable squid.service >/dev/null 2>&1 || true
		fi
	fi
fi

[[ -n $need_go ]] || exit 0
# The metapackage is old on a stable release; the versioned one of backports may do.
candidate=$(apt-cache search --names-only '^golang-1\.[0-9]+-go$' | awk '{print $1}' | sort -V | tail -n1)
offered=${candidate#golang-}
offered=${offered%-go}
if [[ -n $candidate && $(id -u) == 0 ]] && version_at_least "$offered" "${want_go%.0}"; then
	"${apt[@]}" install --no-install-recommends "$candidate" >&2
	ln -sf "/usr/lib/go-$offered/bin/go" "/usr/lib/go-$offered/bin/gofmt" /usr/local/bin/
	exit 0
fi
echo "install-deps: Go $want_go or newer is needed; found ${have_go:-none}, and this distribution offers ${offered:-none}" >&2
exec bash "$root/scripts/fetch-go.sh"
