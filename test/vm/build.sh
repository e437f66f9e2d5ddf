#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the virtual machine that run.sh starts, once, into the cache:
#
#   vmlinuz       Debian's stock kernel, so that the suite meets the kernel users have
#   initrd        busybox and the few modules that find the root disk
#   rootfs.ext4   a small Debian with the programs that the suite runs in the rings
#
# It prints the folder that holds the three. The folder's name is a hash of the
# scripts that shape the image: an edit makes a new image, nothing else does.
# To take a newer kernel or newer packages, remove .cache/vm and build again.
#
# Packages come from the mirror apt is set up with. Needs root: debootstrap makes
# device nodes and runs maintainer scripts in a chroot.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${AGENTRUN_CACHE:-$root/.cache}/vm

# What the integration suite starts inside the rings or looks at the host with.
# The testsuite package brings python3.11's own tests for docs/compatibility.md.
packages=python3,libpython3.11-testsuite,nodejs,bash,git,ca-certificates,strace,procps
packages+=,iproute2,libseccomp2,bubblewrap,kmod,apparmor,util-linux,less
# Clients of the egress proxy; squid and tinyproxy are measured on the host alone.
packages+=,curl,python3-requests,busybox-static
# The service manager, for the units of packaging/systemd: the machine does not boot with it.
packages+=,systemd

die() { echo "test/vm/build.sh: $*" >&2; exit 1; }

# The folder's name is all that may come out of standard output: some versions of mke2fs, for one, talk there.
exec 3>&1 1>&2
key=$(cat "$here/build.sh" "$here/initramfs-init" "$here/guest-init" | sha256sum | cut -c1-16)
image=$cache/$key

mkdir -p "$cache"
# Two runs at once must not build twice, nor one read what the other half wrote.
exec 9>"$cache/lock"
flock 9
if [[ -e $image/rootfs.ext4 && -e $image/vmlinuz && -e $image/initrd ]]; then
	echo "$image" >&3
	exit 0
fi

[[ $(id -u) == 0 ]] || die "building the image needs root"
for tool in debootstrap mke2fs dpkg-deb depmod busybox cpio gzip; do
	command -v "$tool" >/dev/null || die "$tool is missing: scripts/install-deps.sh installs it"
done
# shellcheck disable=SC1091
. /etc/os-release
[[ ${ID:-} == debian ]] || die "the image is made of Debian's packages from the machine's own mirror; this machine is ${ID:-unknown}"
codename=$VERSION_CODENAME

start=$SECONDS
say() { echo "[vm image] $((SECONDS - start))s $*" >&2; }

work=$(mktemp -d "$cache/build.XXXXXX")
# debootstrap may be stopped with /proc mounted in the tree; rm -rf would then walk into it.
unhook() { for m in proc sys dev/pts dev; do umount "$work/tree/$m" 2>/dev/null || true; done; }
cleanup() {
	unhook
	rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

# again COMMAND…: a mirror that is being refreshed, or slow for a moment, is not a failed test. Each try begins with
# fresh lists, since stale ones name packages that the mirror has replaced meanwhile.
again() {
	local try
	for try in 1 2 3; do
		"$@" && return 0
		((try < 3)) || return 1
		say "try $try of 3 did not work; again in $((try * 10)) s"
		sleep "$((try * 10))"
		apt-get update -q >&2 || true
	done
}

if ! apt-cache show linux-image-amd64 >/dev/null 2>&1; then
	apt-get update -q >&2 || true
fi

say "fetching the kernel"
mkdir -p "$work/deb" "$work/kernel"
fetch_kernel() {
	kernel=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/ {print $2; exit}')
	[[ -n $kernel ]] || { echo "apt knows no package linux-image-amd64" >&2; return 1; }
	# apt drops to its own user for downloads; in a folder of root's that only draws a warning.
	(cd "$work/deb" && rm -f ./*.deb && apt-get download -q -o APT::Sandbox::User=root "$kernel" >&2)
}
again fetch_kernel || die "the kernel's package can't be had"
# Unpacked, not installed: the host's /boot and its boot loader are none of our business.
dpkg-deb -x "$work"/deb/linux-image-*.deb "$work/kernel"
version=$(ls "$work/kernel/lib/modules")
depmod -b "$work/kernel" "$version"

say "installing Debian $codename into a folder"
# shellcheck disable=SC2016 # apt's variables, not the shell's
mirror=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI) $(COMPONENT)' 'Created-By: Packages' |
	awk -v c="$codename" '$1 == c && $3 == "main" {print $2; exit}')
[[ -n $mirror ]] || die "apt has no source for $codename main; run apt-get update"
bootstrap() {
	rm -rf --one-file-system "$work/tree"
	debootstrap --variant=minbase --include="$packages" "$codename" "$work/tree" "$mirror" >"$work/debootstrap.log" 2>&1 && return
	tail -n 40 "$work/debootstrap.log" "$work/tree/debootstrap/debootstrap.log" >&2 || true
	unhook
	return 1
}
again bootstrap || die "debootstrap did not finish"

say "preparing the root disk"
tree=$work/tree
rm -rf "$tree"/var/cache/apt/archives/*.deb "$tree"/var/lib/apt/lists/* "$tree"/usr/share/{doc,man,locale,info}/*
install -m 0755 "$here/guest-init" "$tree/sbin/guest-init"
mkdir -p "$tree"/{payload,results,work}
echo agentrun-vm >"$tree/etc/hostname"
printf '127.0.0.1 localhost agentrun-vm\n::1 localhost\n' >"$tree/etc/hosts"
# An ordinary user, for rootless tests.
chroot "$tree" useradd --create-home --uid 1000 --shell /bin/bash user 2>/dev/null
# Drivers for hardware are most of the modules' size and there is no hardware.
# Kept is what a sandboxed process could make the kernel load (socket families,
# file systems, ciphers): a test that these stay shut means nothing without them.
modules=lib/modules/$version
mkdir -p "$tree/$modules/kernel/drivers"
for part in fs net crypto lib arch security; do
	[[ ! -d $work/kernel/$modules/kernel/$part ]] || cp -a "$work/kernel/$modules/kernel/$part" "$tree/$modules/kernel/"
done
for part in block virtio vhost char; do
	[[ ! -d $work/kernel/$modules/kernel/drivers/$part ]] || cp -a "$work/kernel/$modules/kernel/drivers/$part" "$tree/$modules/kernel/drivers/"
done
mkdir -p "$tree/$modules/kernel/drivers/net"
cp -a "$work/kernel/$modules"/kernel/drivers/net/{veth,tun,dummy}.ko* "$tree/$modules/kernel/drivers/net/"
cp -a "$work/kernel/$modules"/modules.{builtin,order,builtin.modinfo} "$tree/$modules/" 2>/dev/null || true
depmod -b "$tree" "$version"

mkdir -p "$work/out"
size=$(du -sm --apparent-size "$tree" | cut -f1)
# Room for the suite's own files; the disk is sparse, so unused room costs nothing.
mke2fs -q -t ext4 -L agentrun-root -d "$tree" -E lazy_itable_init=1,lazy_journal_init=1 "$work/out/rootfs.ext4" "$((size + 3072))M"

say "packing the initramfs"
ram=$work/initramfs
mkdir -p "$ram"/{bin,dev,proc,sys,newroot,"$modules"}
cp "$(command -v busybox)" "$ram/bin/busybox"
# A dynamically linked busybox would find no loader in there.
if ldd "$ram/bin/busybox" >/dev/null 2>&1; then die "busybox is not static: install busybox-static"; fi
install -m 0755 "$here/initramfs-init" "$ram/init"
for module in virtio_pci virtio_blk virtio_console virtio_rng ext4 crc32c_generic crc32c-intel; do
	modprobe -d "$work/kernel" -S "$version" --show-depends "$module" 2>/dev/null | awk '$1 == "insmod" {print $2}'
done | sort -u | while read -r file; do
	rel=${file#"$work/kernel/"}
	mkdir -p "$ram/$(dirname "$rel")"
	cp "$file" "$ram/$rel"
done
cp "$work/kernel/$modules"/modules.{builtin,order} "$ram/$modules/"
depmod -b "$ram" "$version"
(cd "$ram" && find . | cpio --quiet -o -H newc | gzip -1) >"$work/out/initrd"
cp "$work/kernel/boot/vmlinuz-$version" "$work/out/vmlinuz"
echo "$version" >"$work/out/kernel-version"

# The rename is what makes the image exist: a build that was cut short leaves none.
rm -rf --one-file-system "$image"
mv "$work/out" "$image"
# Images of older scripts are dead weight of a gigabyte each.
for old in "$cache"/*/; do
	[[ ${old%/} == "$image" || ${old%/} == "$work" ]] || rm -rf --one-file-system "$old"
done
say "done: $image ($(du -sm "$image" | cut -f1) MB, kernel $version)"
echo "$image" >&3
