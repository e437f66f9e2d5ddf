#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The validation programs of opencontainers/runtime-tools, first on Debian's runc and then on agentrun-oci. What each comes to must be as
# validation.txt has it: where the two differ, docs/engines-validation.md says why. --update writes validation.txt; the reasons are people's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

module=$PWD/.cache/validation list=$PWD/test/engines/validation.txt page=$PWD/docs/engines-validation.md
if [[ ! -x $module/bin/runtimetest ]]; then # a module of its own: nothing of it is agentrun's
	rm -rf "$module"
	mkdir -p "$module/bin"
	cat >"$module/go.mod" <<-EOF
		module validation
		go 1.26
		require (
			github.com/opencontainers/runtime-tools v0.9.0
			github.com/opencontainers/runtime-spec v1.0.2
			github.com/opencontainers/selinux v1.3.0
			github.com/satori/go.uuid v1.2.0
			github.com/urfave/cli v1.22.5
		)
	EOF
	(
		cd "$module"
		export GOFLAGS=-mod=mod
		tools=github.com/opencontainers/runtime-tools
		go mod download "$tools"
		from=$(go list -m -f '{{.Dir}}' "$tools")
		mapfile -t programs < <(find "$from/validation" -mindepth 1 -maxdepth 1 -type d ! -name util -printf "$tools/validation/%f\n" | sort)
		printf '//go:build never\n\npackage validation\n\nimport (\n' >all.go
		printf '\t_ "%s"\n' "$tools/cmd/runtimetest" "${programs[@]}" >>all.go
		echo ')' >>all.go
		go mod tidy
		go build -o bin/ "${programs[@]}"
		cp "$from/rootfs-$(go env GOARCH).tar.gz" bin/
		CGO_ENABLED=0 go build -o bin/runtimetest "$tools/cmd/runtimetest"
	)
fi

work=$(mktemp -d /var/tmp/agentrun-validation-XXXXXX) # no tmpfs: a device file stands in a root
export AGENTRUN_STATE_DIR=$work/state AGENTRUN_RUN_DIR=$work/run TMPDIR=$work/tmp
mkdir -m 0700 "$work/state" "$work/run" "$work/tmp"
finish() {
	code=$?
	"$work/agentrun" list -q 2>/dev/null | xargs -r -n1 "$work/agentrun" delete --force >/dev/null 2>&1 || true
	"$work/runc" list -q 2>/dev/null | xargs -r -n1 "$work/runc" delete --force >/dev/null 2>&1 || true
	grep -o " ${work}[^ ]*" /proc/mounts | sort -r | xargs -r umount -l 2>/dev/null || true
	find /sys/fs/cgroup -depth -type d \( -path '*/cgrouptest*' -o -path '*/testdir*' \) -exec rmdir {} + 2>/dev/null || true
	rm -rf "$work"
	exit $code
}
trap finish EXIT

printf '#!/bin/sh\nexec %s --root %s "$@"\n' "$(command -v runc)" "$work/runc-root" >"$work/runc"
ln -sf agentrun-oci bin/agentrun-ring2
# A bundle as engines write it: the programs' has no maskedPaths, and would be refused at once.
cat >"$work/agentrun" <<EOF
#!/bin/sh
case " \$* " in *" create "*)
	for word; do
		[ "\$before" != --bundle ] || grep -q maskedPaths "\$word/config.json" 2>/dev/null ||
			sed -i 's|"linux": {|"linux": {"maskedPaths": ["/proc/kcore"],|' "\$word/config.json" 2>/dev/null
		before=\$word
	done ;;
esac
exec $PWD/bin/agentrun-ring2 --root $work/oci-root "\$@"
EOF
chmod 0755 "$work/runc" "$work/agentrun"

# verdict RUNTIME PROGRAM: in one word; refused is a bundle that is told what of it isn't given. Some programs mount in the namespace that they are started in.
verdict() {
	local said=$work/$2.$1 code=0
	(cd "$module/bin" && RUNTIME=$work/$1 timeout 60 unshare --mount --propagation slave "./$2") >"$said" 2>&1 </dev/null || code=$?
	if ((code == 0)) && ! grep -q '^not ok' "$said"; then
		echo pass
	elif grep -qE 'the bundle demands what no ring gives|is outside the range|unsafe root' "$said"; then
		echo refused
	else
		echo fail
	fi
}

{
	printf '%-31s %-5s %s\n' "# program" runc "agentrun-ring2"
	for program in "$module"/bin/*; do
		program=$(basename "$program")
		case $program in
		runtimetest | rootfs-*) continue ;;
		pidfile) continue ;; # whether it passes hangs on whether its process has ended by the time that it is killed
		esac
		for _ in 1 2 3; do # several wait for a second and hope, which on a busy host is not enough
			line=$(printf '%-31s %-5s %s' "$program" "$(verdict runc "$program")" "$(verdict agentrun "$program")")
			if [[ ${1:-} == --update ]] || grep -qxF "$line" "$list"; then break; fi
		done
		echo "$line"
	done
} >"$work/list"
[[ -z ${KEEP:-} ]] || cp "$work"/*.runc "$work"/*.agentrun "$KEEP/" # what they said
[[ ${1:-} != --update ]] || cp "$work/list" "$list"
missing=0
while read -r program runc agentrun; do
	[[ $program == "#" || $runc == "$agentrun" ]] || grep -q "^| \`$program\`" "$page" || { echo "$page has no reason for $program"; missing=1; }
done <"$list"
diff -u "$list" "$work/list"
((missing == 0))
echo "as in ${list#"$PWD"/}: $(grep -vc '^#' "$list") programs, $(awk '!/^#/ && $3 == "pass"' "$list" | wc -l) pass on agentrun, $(awk '!/^#/ && $2 == "pass"' "$list" | wc -l) on runc"
