#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# `make run` of this tree on a Debian that has nothing but git and make:
#
#   test/bare/run.sh [CODENAME]
#
# It ends well if the example agent was refused all of its eleven attempts, and if nothing but packages and the clone was
# written to. The Debian is a folder of debootstrap's, made once; packages and modules of earlier runs are kept below .cache/bare, the
# toolchain is fetched each time. What a go command of the same version has compiled for this machine serves there, too: what is
# missing shows when the programs are linked. Needs root and network.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${AGENTRUN_CACHE:-$root/.cache}/bare
say() { echo "[bare] ${SECONDS}s $*" >&2; }
die() { echo "test/bare/run.sh: $*" >&2; exit 1; }

command -v debootstrap >/dev/null || die "debootstrap is missing: scripts/install-deps.sh test installs it"
# shellcheck disable=SC1091
. /etc/os-release
[[ ${ID:-} == debian ]] || die "the machine is made of Debian's packages from this machine's own mirror; this one is ${ID:-unknown}"
codename=${1:-$VERSION_CODENAME}

[[ $(id -u) == 0 ]] || die "it needs root"
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
work=$(mktemp -d "$cache/run.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM
# What is mounted goes with the namespace it is mounted in.
apart() { unshare --mount --propagation private --pid --fork --kill-child "$@"; }

base=$cache/$codename.tar
if [[ ! -e $base ]]; then
	say "installing Debian $codename into a folder"
	# shellcheck disable=SC2016 # apt's variables, not the shell's
	mirror=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI) $(COMPONENT)' 'Created-By: Packages' |
		awk -v c="$VERSION_CODENAME" '$1 == c && $3 == "main" {print $2; exit}')
	[[ -n $mirror ]] || die "apt has no source for $VERSION_CODENAME main; run apt-get update"
	apart debootstrap --variant=minbase --include=git,make "$codename" "$work/first" "$mirror" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; die "debootstrap did not finish"; }
	rm -rf "$work"/first/var/cache/apt/archives/*.deb
	tar -C "$work/first" --one-file-system -cf "$work/tar" .
	mv "$work/tar" "$base"
	rm -rf --one-file-system "$work/first"
fi

compiled=$cache/go-build
if [[ "$(go env GOVERSION 2>/dev/null)" == "$(sed -n 's/^version=//p' "$root/scripts/fetch-go.sh")" ]]; then compiled=$(go env GOCACHE); fi
say "unpacking it"
tree=$work/tree clone=/root/agentrun
mkdir -p "$tree" "$cache"/{archives,go-path} "$compiled"
tar -C "$tree" -xf "$base"
cp -L /etc/resolv.conf /etc/hosts "$tree/etc/"
mkdir -p "$tree$clone/.cache"/{go-build,go-path} "$tree/old" "$tree/before"
(cd "$root" && git ls-files -co --exclude-standard -z | while IFS= read -r -d '' f; do [[ ! -e $f ]] || printf '%s\0' "$f"; done |
	tar -c --null -T -) | tar -x -C "$tree$clone"

# What names the network of this machine is all that goes in of the environment.
settings=(PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8)
if [[ -e /etc/ssl/certs/ca-certificates.crt ]]; then
	cp -L /etc/ssl/certs/ca-certificates.crt "$tree/etc/this-network.crt"
	settings+=(SSL_CERT_FILE=/etc/this-network.crt)
fi
for name in GOPROXY http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
	[[ -z ${!name:-} ]] || settings+=("$name=${!name}")
done

cat >"$work/enter" <<'EOF'
set -e
cd "$1"
mount --bind . .
cd "$1" # pivot_root(2) wants a mount point
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount --bind "$2/archives" var/cache/apt/archives
mount --bind "$4" "./$3/.cache/go-build"
mount --bind "$2/go-path" "./$3/.cache/go-path"
clone=$3
shift 4
pivot_root . old
umount -l /old
exec env -i "$@" bash /before/try "$clone"
EOF
cat >"$tree/before/try" <<'EOF'
set -e
cd "$1"
for p in go gcc python3; do ! command -v "$p" || { echo "there is $p already"; exit 1; }; done
touch /before/stamp
make run
test -x .cache/go/bin/go
new=$(find /root /home /opt /srv /usr/local -newer /before/stamp -not -path "$1*" -not -type d)
test -z "$new" || { echo "written outside of the clone: $new"; exit 1; }
EOF
say "make run"
code=0
apart bash "$work/enter" "$tree" "$cache" "$clone" "$compiled" "${settings[@]}" </dev/null 2>&1 | tee "$work/log" || code=$?
[[ $code == 0 ]] || die "make run ended with $code"
grep -qx '11 of 11 attempts refused' "$work/log" || die "the example did not end with 11 of 11 attempts refused"
say "done"
