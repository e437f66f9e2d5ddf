#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Unpacks the pinned Go toolchain into .cache/go, where make looks first; for machines whose own Go is too old or missing.
#
# Go publishes its toolchains as modules. Any go command can fetch one, however old, and it alone knows which proxy
# this machine is to use: GOPROXY, or what `go env` says. Where there is no go at all, that of the distribution's package is
# unpacked, not installed. Nothing outside of .cache is written, and root isn't needed (docs/dependencies.md).
set -euo pipefail

# The sum is that of the module's zip as in a go.sum (h1). A proxy can only give what has it.
version=go1.26.8
sum='h1:ZOmGe1OnfREDMIdb1Qi4G9JSuDPBLGExZMQ4nis1RXM='
module=golang.org/toolchain@v0.0.1-$version.linux-amd64

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=$root/.cache
say() { echo "fetch-go: $*" >&2; }
die() { say "$@"; exit 1; }

[[ $(uname -m) == x86_64 ]] || die "the pinned toolchain is for x86-64, this machine is $(uname -m)"
if [[ $(cat "$cache/go/sum" 2>/dev/null) == "$sum" ]]; then exit 0; fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch-go.XXXXXX")
trap 'rm -rf "$work"' EXIT

any_go() {
	local go package
	for go in "$(command -v go)" /usr/local/go/bin/go /usr/lib/go*/bin/go; do
		if [[ -x $go ]] && GOTOOLCHAIN=local "$go" version >/dev/null 2>&1; then
			echo "$go"
			return
		fi
	done
	package=$(apt-cache depends golang-go 2>/dev/null | awk '$2 ~ /^golang-[0-9.]+-go$/ {print $2; exit}')
	[[ -n $package ]] || die "no go command here, and apt knows no package golang-go: apt-get update, or install Go by hand"
	say "unpacking $package to fetch with"
	(cd "$work" && apt-get download -q -o APT::Sandbox::User="$(id -un)" "$package" >&2) || die "apt-get download $package did not work"
	dpkg-deb -x "$work/$package"_*.deb "$work/distribution" >&2
	echo "$work"/distribution/usr/lib/go-*/bin/go
}

go=$(any_go)
say "fetching $module"
# In a module of its own: an old go can't read ours. The pinned sum decides, so no other list of sums is asked. The
# settings of the user's `go env -w` count; the counters that newer ones keep beside them are off.
printf 'module fetch\n' >"$work/go.mod"
mkdir -p "$work/config/go/telemetry"
echo off >"$work/config/go/telemetry/mode"
answer=$(cd "$work" && env -u GOFLAGS -u GOROOT GOENV="${GOENV:-${XDG_CONFIG_HOME:-${HOME:-/root}/.config}/go/env}" XDG_CONFIG_HOME="$work/config" \
	GOTOOLCHAIN=local GO111MODULE=on GOWORK=off GONOSUMDB=golang.org/toolchain GOPATH="$work/path" GOMODCACHE="$work/mod" GOCACHE="$work/build" \
	GOFLAGS=-modcacherw GOROOT="$(dirname "$(dirname "$(readlink -f "$go")")")" "$go" mod download -json "$module") ||
	die "$go could not fetch it: $(sed -n 's/.*"Error": //p' <<<"$answer")" "(go env GOPROXY names where from)"
got=$(sed -n 's/^\t"Sum": "\(.*\)",$/\1/p' <<<"$answer")
[[ $got == "$sum" ]] || die "$module has the sum ${got:-none}, want $sum: not used"

# The pinned toolchain, with its caches beside it. What a test or a program under `go run` gets is the user's own environment.
mkdir -p "$work/go/bin"
mv "$work/mod/${module}" "$work/go/root"
chmod -R u+w "$work/go/root"
chmod 0755 "$work"/go/root/bin/* "$work"/go/root/pkg/tool/*/*
cat >"$work/go/bin/go" <<'EOF'
#!/bin/sh
# Made by scripts/fetch-go.sh.
cache=$(cd "$(dirname "$0")/../.." && pwd)
export GOTOOLCHAIN=local GOPATH="${GOPATH:-$cache/go-path}" GOCACHE="${GOCACHE:-$cache/go-build}"
case $1 in
run | test) ;;
*) export GOENV="${GOENV:-${XDG_CONFIG_HOME:-${HOME:-/root}/.config}/go/env}" XDG_CONFIG_HOME="$cache/go-config" ;;
esac
exec "$cache/go/root/bin/go" "$@"
EOF
chmod 0755 "$work/go/bin/go"
ln -s ../root/bin/gofmt "$work/go/bin/gofmt"
echo "$sum" >"$work/go/sum"
# The rename is what makes it exist: one that was cut short leaves none.
rm -rf "$cache/go"
mv "$work/go" "$cache/go"
say "$("$cache/go/bin/go" version) in .cache/go"
