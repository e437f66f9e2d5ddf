#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a Vagrant box (provider libvirt) of Debian's packages from the machine's own mirror, once, into the cache; nothing comes
# from a catalogue of boxes. It prints the folder that holds
#
#   agentrun.box       the disk: Debian with systemd, sshd and the programs the suite runs; Vagrant's own well-known key opens it
#   vmlinuz, initrd    the disk has no boot loader, so the Vagrantfile hands these over
#
# The folder's name is a hash of the scripts that shape it. To take newer packages remove .cache/vagrant. Needs root.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
cache=${AGENTRUN_CACHE:-$root/.cache}/vagrant
die() { echo "test/vagrant/box.sh: $*" >&2; exit 1; }

exec 3>&1 1>&2
key=$(cat "$here/box.sh" "$root/test/vm/build.sh" | sha256sum | cut -c1-16)
box=$cache/$key
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [[ -e $box/agentrun.box && -e $box/vmlinuz && -e $box/initrd ]]; then
	echo "$box" >&3
	exit 0
fi

[[ $(id -u) == 0 ]] || die "making the box needs root"
for tool in debootstrap mke2fs qemu-img vagrant; do
	command -v "$tool" >/dev/null || die "$tool is missing: make test-vagrant installs it"
done
# shellcheck disable=SC1091
. /etc/os-release
[[ ${ID:-} == debian ]] || die "the box is made of Debian's packages from this machine's own mirror; this one is ${ID:-unknown}"
public=$(find /usr/share/rubygems-integration /usr/share/vagrant /opt/vagrant -path '*/keys/vagrant.pub' -print -quit 2>/dev/null)
[[ -n $public ]] || die "Vagrant's well-known public key (keys/vagrant.pub) isn't where its package puts it"

start=$SECONDS
say() { echo "[box] $((SECONDS - start))s $*"; }
work=$(mktemp -d "$cache/build.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM

# What is mounted while packages are set up goes with the namespace.
apart() { unshare --mount --propagation private --pid --fork --kill-child "$@"; }

# The suite's programs are those of the other machine (test/vm/build.sh).
programs=$(sed -n 's/^packages+\?=//p' "$root/test/vm/build.sh" | tr -d '\n' | sed 's/^,//')
[[ $programs == *strace* ]] || die "test/vm/build.sh names no packages"
programs+=,systemd-sysv,dbus,udev,openssh-server,sudo,rsync,kmod,initramfs-tools,linux-image-amd64

say "installing Debian $VERSION_CODENAME into a folder"
# shellcheck disable=SC2016 # apt's variables, not the shell's
mirror=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI) $(COMPONENT)' 'Created-By: Packages' |
	awk -v c="$VERSION_CODENAME" '$1 == c && $3 == "main" {print $2; exit}')
[[ -n $mirror ]] || die "apt has no source for $VERSION_CODENAME main; run apt-get update"
tree=$work/tree
apart debootstrap --variant=minbase --include="$programs" "$VERSION_CODENAME" "$tree" "$mirror" >"$work/log" 2>&1 ||
	{ tail -n 20 "$work/log" "$tree/debootstrap/debootstrap.log" 2>/dev/null; die "debootstrap did not finish"; }

say "setting it up"
rm -rf "$tree"/var/cache/apt/archives/*.deb "$tree"/var/lib/apt/lists/* "$tree"/usr/share/{doc,man,locale,info}/*
echo agentrun-vagrant >"$tree/etc/hostname"
printf '127.0.0.1 localhost agentrun-vagrant\n::1 localhost\n' >"$tree/etc/hosts"
echo '/dev/vda / ext4 defaults 0 1' >"$tree/etc/fstab"
printf '[Match]\nName=e*\n\n[Network]\nDHCP=yes\n' >"$tree/etc/systemd/network/80-dhcp.network"
chroot "$tree" systemctl -q enable systemd-networkd ssh
# uid 1000, as the suite's ordinary user is called elsewhere.
chroot "$tree" useradd --create-home --uid 1000 --shell /bin/bash user
chroot "$tree" useradd --create-home --shell /bin/bash vagrant
echo 'vagrant ALL=(ALL) NOPASSWD: ALL' >"$tree/etc/sudoers.d/vagrant"
chmod 0440 "$tree/etc/sudoers.d/vagrant"
install -d -m 0700 "$tree/home/vagrant/.ssh"
install -m 0600 "$public" "$tree/home/vagrant/.ssh/authorized_keys"
chroot "$tree" chown -R vagrant:vagrant /home/vagrant/.ssh
echo 'UseDNS no' >>"$tree/etc/ssh/sshd_config"

say "packing it"
out=$work/out
mkdir "$out"
cp "$tree"/boot/vmlinuz-* "$out/vmlinuz"
cp "$tree"/boot/initrd.img-* "$out/initrd"
size=$(du -sm --apparent-size "$tree" | cut -f1)
mke2fs -q -t ext4 -L agentrun-root -d "$tree" -E lazy_itable_init=1,lazy_journal_init=1 "$work/disk" "$((size + 4096))M"
qemu-img convert -f raw -O qcow2 "$work/disk" "$work/box.img"
printf '{"provider": "libvirt", "format": "qcow2", "virtual_size": %d}\n' "$(((size + 4096 + 1023) / 1024))" >"$work/metadata.json"
echo 'Vagrant.configure("2") { |config| }' >"$work/Vagrantfile"
tar -C "$work" -cf "$out/agentrun.box" metadata.json Vagrantfile box.img
mv "$out" "$box"
say "done: $(du -h "$box/agentrun.box" | cut -f1)"
echo "$box" >&3
