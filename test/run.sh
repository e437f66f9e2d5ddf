#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# What `make test` runs:
#
#   test/run.sh [all]   lint, compat, host, vm, unit, bench, fuzz and bare, then the merged table
#   test/run.sh STEP…   only those, then the table of what they tested
#   test/run.sh attack  the tests that docs/attacks.md is made of, on both kernels, and writes it
#
# A step that fails does not stop the ones after it: one run is to tell everything.
# The binaries must be built (make build probe). Settings:
#
#   FUZZTIME               per fuzz target, default 3000x, guided by our own code alone
#   AGENTRUN_VM_SEQUENCE   runs in sequence and at once in the VM, where each takes
#   AGENTRUN_VM_CROWD      ten times as long; defaults 12 and 12
#   AGENTRUN_VM_CPUS       its processors, default 1; 2 with AGENTRUN_VM_WHOLE
#   AGENTRUN_VM_WHOLE=1    the VM tries what CI leaves to the host, too (make test-vm)
#   CI=true or AGENTRUN_TEST_MUST_RUN=1   a test skipped on every platform is a failure
# shellcheck disable=SC2317 # the steps are called by their names
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

GO=${GO:-go}
out=$PWD/test/out
integration=./test/integration
export GOFLAGS=${GOFLAGS:--trimpath -tags=urfave_cli_no_docs,netgo,osusergo}
export AGENTRUN_BIN=$PWD/bin/agentrun AGENTRUN_PROBE=$PWD/bin/probe

must_run=()
if [[ ${CI:-} == true || ${AGENTRUN_TEST_MUST_RUN:-} == 1 ]]; then must_run=(-must-run); fi
# Whether a skip is a failure is decided over both kernels, by the table.
unset AGENTRUN_TEST_MUST_RUN
export AGENTRUN_TEST_ELSEWHERE=1
# The race detector waits for a second in each process that ends: two hundred packages and programs of theirs.
export GORACE=${GORACE:-atexit_sleep_ms=0}

failed=()
begin=$SECONDS
say() { printf '\n== %s (%d s)\n' "$*" "$((SECONDS - begin))"; }
check() {
	local name=$1
	shift
	"$@" || failed+=("$name")
}

# Packages whose tests touch the kernel, and so mean something else on another one.
vm_packages() {
	local p
	local all=(cgroups netns fsjail seccomp internal/hostcaps runtime/internal/stub runtime test/integration)
	if [[ -n ${AGENTRUN_VM_RUN:-} ]]; then all=(test/integration); fi
	for p in "${all[@]}"; do
		if compgen -G "$p/*_test.go" >/dev/null; then echo "$p"; fi
	done
}

unformatted() {
	local files
	files=$(git ls-files -co --exclude-standard '*.go' | while read -r f; do [[ ! -e $f ]] || echo "$f"; done | xargs "${GO%go}gofmt" -l)
	[[ -z $files ]] || { echo "not formatted by gofmt: $files"; return 1; }
}

scripts() {
	command -v shellcheck >/dev/null || { echo "shellcheck is missing: scripts/install-deps.sh test installs it"; return 1; }
	git ls-files -co --exclude-standard '*.sh' .ci/run test/vm/guest-init test/vm/initramfs-init | grep -v /testdata/ | sort -u |
		while read -r f; do [[ ! -e $f ]] || echo "$f"; done | xargs shellcheck
}

# Vagrant has an opinion about its file that no other program has. Ubuntu has no package of it any more. What it says of a provider
# needs one that this machine can use: test/vagrant has it.
vagrantfile() {
	if command -v vagrant >/dev/null; then
		VAGRANT_HOME=$out/vagrant-home vagrant validate --ignore-provider
	elif grep -qx ID=debian /etc/os-release; then
		echo "vagrant is missing: scripts/install-deps.sh test installs it"
		return 1
	else
		echo "the Vagrantfile is not validated: only Debian is known to have a package vagrant"
	fi
}

# check_late is check with one more try when all else is over, where this is a run of everything: beside the unit tests a peer of the
# benches or a package server meets a stall now and then. What passes then is told by name.
late=()
check_late() {
	"${@:2}" && return
	echo "step failed: $1; once more when all else is over"
	late+=("$(printf '%q ' "$@")")
}

again_late() {
	local line args
	for line in "${late[@]+"${late[@]}"}"; do
		eval "args=($line)"
		[[ ${1:-} == try ]] || { failed+=("${args[0]}"); continue; }
		say "again: ${args[0]}"
		if "${args[@]:1}"; then echo "passed at the second try: ${args[0]}"; else failed+=("${args[0]}"); fi
	done
}

# again FILE go-test-arguments…: one more try, on a machine that is quiet by then, of the few tests of a stream that failed. What passes
# then is named in the results; a race, a panic and a timeout have no second try (testtable again).
again() {
	local file=$1 package pattern n=0
	shift
	[[ -s $file ]] || return 0
	while read -r package pattern; do
		n=$((n + 1))
		say "again: $package $pattern"
		watched "${file%.json}.again$n.json" "$@" -run "$pattern" "$package" </dev/null
		tables+=("again:host=${file%.json}.again$n.json")
	done < <("$tool" again <"$file")
}

# again_vm is again for the integration suite in the VM.
again_vm() {
	local package pattern
	[[ -s $out/vm.json && -s $out/payload/packages ]] || return 0
	while read -r package pattern; do
		[[ $package == agentrun/test/integration ]] || continue
		say "again in the VM: $pattern"
		grep -x test/integration "$out/payload/packages" >"$out/payload/packages.new" && mv "$out/payload/packages.new" "$out/payload/packages"
		rm -f "$out/payload/passed"
		cp "$out/vm.json" "$out/vm.first.json"
		AGENTRUN_VM_RUN=$pattern guest_vm
		mv "$out/vm.json" "$out/vm.again.json"
		mv "$out/vm.first.json" "$out/vm.json"
		unset 'tables[-1]'
		tables+=("again:vm=$out/vm.again.json")
	done < <("$tool" again <"$out/vm.json")
}

step_lint() {
	check gofmt unformatted
	check vet "$GO" vet ./...
	check shellcheck scripts
	check Vagrantfile vagrantfile
}

watched() { # watched FILE go-test-arguments…
	local file=$1
	shift
	"$tool" reap "$GO" test -json "$@" 2>&1 | "$tool" watch "$file"
}

# Packages whose tests ask for nothing of the machine but files of their own: the host's suite, which looks at processes, mounts and
# cgroups, doesn't notice them.
calm='^agentrun/(audit|config|conform|control|governance|hypervisor|meter|pdp|profiles|rings|safetyloop|sagas|telemetry|toolproxy|witness)(/|$)'

# unit NAME GREP-ARGUMENTS…: the packages that grep lets pass, into the stream of that name.
unit() {
	local name=$1 packages
	shift
	mapfile -t packages < <("$GO" list ./... | grep -vE '/test/(integration|compat)$' | grep "$@")
	((${#packages[@]} > 0)) || { failed+=("$name tests: go list has no packages"); return; }
	# Outcomes are read from the events; the exit code would count them twice. Benchmarks run once each: this shows that they still
	# compile and run, not how fast, and the binaries are there already.
	watched "$out/$name.json" -race -timeout 30m -bench . -benchtime 1x "${packages[@]}"
}

step_host() {
	tables+=("host=$out/host.json")
	watched "$out/host.json" -race -count 1 -parallel 4 -timeout 40m "$integration" # more at once than processors: they mostly wait
}

# CPython's own tests and other people's programs, in ring 2 beside the host. Without the
# race detector: the Go side only compares.
step_compat() {
	tables+=("host=$out/compat.json")
	watched "$out/compat.json" -count 1 -parallel 8 -timeout 30m ./test/compat # more at once than processors: they mostly wait
}

# By itself: no more than the tests that docs/attacks.md is made of, on both kernels, and the page.
step_attack() {
	local package tests f streams=()
	while read -r package tests; do
		f=$out/attack${package//\//-}.json
		streams+=("host=$f")
		watched "$f" -count 1 -timeout 40m -run "$tests" "$package"
		if [[ $package == "$integration" ]]; then AGENTRUN_VM_RUN=$tests step_vm; fi
	done < <("$tool" attacks -tests)
	tables+=("${streams[@]}")
	attack_page "${streams[@]}" "vm=$out/vm.json"
	cp "$out/attacks.md" docs/attacks.md
}

# After host, unit and vm it is read from what they left. The committed page's rows are compared by housekeeping_test.go.
attack_page() {
	"$tool" attacks -commit "$(git describe --always --dirty 2>/dev/null)" "$@" >"$out/attacks.md" ||
		failed+=("attacks: a cell of test/out/attacks.md failed")
}

# What the suites need in a machine without Go, in a folder: programs, compiled tests, sources with their testdata.
payload() {
	local payload=$1 p
	rm -rf "$payload"
	mkdir -p "$payload/bin" "$payload/src" "$payload/tests"
	cp bin/agentrun bin/agentrun-gateway bin/agentrun-safety bin/agentrun-image bin/agentrun-oci bin/probe "$payload/bin/"
	cp test/vm/suite.sh "$payload/"
	# What the host's tests have built of others' programs (TestOutsideTools): the guest has no go command.
	if [[ -d .cache/outside ]]; then cp -r .cache/outside "$payload/"; fi
	# Tests read testdata, profiles and examples relative to their folder.
	git ls-files -co --exclude-standard -z | while IFS= read -r -d '' f; do [[ ! -e $f ]] || printf '%s\0' "$f"; done |
		tar -c --null -T - | tar -x -C "$payload/src"
	mkdir -p "$payload/src/bin"
	# Without the race detector: under emulation it makes a suite of minutes one of hours,
	# and the data races of the tests are the same on every kernel.
	for p in $(vm_packages); do
		if "$GO" test -c -o "$payload/tests/${p//\//--}.test" "./$p"; then
			echo "$p" >>"$payload/packages"
		else
			failed+=("build of $p's tests for the VM")
		fi
	done
}

# passed PACKAGE: the tests of it that have, by the events.
passed() {
	grep -F "\"Package\":\"agentrun/$1\"" | grep -F '"Action":"pass"' | sed -n 's/.*"Test":"\([^"\/]*\)".*/\1/p' | sort -u
}

# guest NAME COMMAND…: the command's output is that of suite.sh in a machine. 0: the script got to its end; how the tests went is in
# the events.
guest() {
	local name=$1 code
	shift
	tables+=("$name=$out/$name.json")
	: >"$out/$name.json"
	"$@" 2> >(tee "$out/$name.log" >&2) | "$tool" guest "$out/$name.json"
	code=${PIPESTATUS[0]}
	# Emulation now and then stands still for good, once in some 40 machines: neither the suite's own time limit nor its kernel then says
	# a word. What had not passed is run once more, and it is told.
	if ((code == 123)); then
		local over package
		over=$(grep -ac '^@@testtable end ' "$out/$name/output")
		package=$(sed -n "$((over + 1))p" "$out/payload/packages")
		((over == 0)) || sed -i "1,${over}d" "$out/payload/packages"
		passed "$package" <"$out/$name.json" >"$out/payload/passed"
		echo "the machine stood still in $package after $(wc -l <"$out/payload/passed") of its tests, and is started once more"
		awk -v package="agentrun/$package" -v passed="$out/payload/passed" '
			BEGIN { while ((getline test < passed) > 0) is[test] = 1 }
			index($0, "\"Package\":\"" package "\"") {
				if (!match($0, /"Test":"[^"\/]*/)) next
				if (!(substr($0, RSTART + 8, RLENGTH - 8) in is)) next
			}
			{ print }' "$out/$name.json" >"$out/$name.over.json"
		[[ ! -s $out/$name.over.json ]] || tables+=("$name=$out/$name.over.json")
		: >"$out/$name.json"
		"$@" 2> >(tee "$out/$name.log" >&2) | "$tool" guest "$out/$name.json"
		code=${PIPESTATUS[0]}
	fi
	((code == 0)) || failed+=("virtual machine: $(tail -n 3 "$out/$name.log" | tr '\n' ' ')")
}

step_vm() {
	payload "$out/payload"
	guest_vm
}

# With one processor the guest takes less of the host's time (docs/testing.md), and leaves one to the unit tests beside it.
guest_vm() {
	local cpus=1
	[[ -z ${AGENTRUN_VM_WHOLE:-} ]] || cpus=2
	AGENTRUN_VM_CPUS=${AGENTRUN_VM_CPUS:-$cpus} guest vm test/vm/run.sh --payload "$out/payload" --results "$out/vm" --timeout "${AGENTRUN_VM_TIMEOUT:-3900}" --silence "${AGENTRUN_VM_SILENCE:-420}" \
		--env AGENTRUN_TEST_ELSEWHERE=1 --env AGENTRUN_TEST_SLOW="${AGENTRUN_TEST_SLOW:-8}" \
		--env AGENTRUN_VM_RUN="${AGENTRUN_VM_RUN:-}" --env AGENTRUN_VM_WHOLE="${AGENTRUN_VM_WHOLE:-}" --env AGENTRUN_TEST_SEQUENCE="${AGENTRUN_VM_SEQUENCE:-12}" --env AGENTRUN_TEST_CROWD="${AGENTRUN_VM_CROWD:-12}" \
		-- bash suite.sh
}

# By itself: the same suites in a machine that boots with systemd and is brought up by Vagrant (D-2).
step_vagrant() {
	payload "$out/payload"
	guest vagrant test/vagrant/run.sh "$out/payload" AGENTRUN_TEST_ELSEWHERE=1 AGENTRUN_TEST_SLOW="${AGENTRUN_TEST_SLOW:-8}" \
		AGENTRUN_VM_RUN="${AGENTRUN_VM_RUN:-}" AGENTRUN_VM_WHOLE=1 AGENTRUN_TEST_SEQUENCE="${AGENTRUN_VM_SEQUENCE:-12}" AGENTRUN_TEST_CROWD="${AGENTRUN_VM_CROWD:-12}"
}

# The host's suite leaves two thirds of two processors idle. What has clocks of its own (calm unit tests) or runs by count (fuzzing) takes
# what is left, as SCHED_IDLE; the emulated machine, whose tests wait eight times as long, comes a little after the suite. The other unit
# tests, which a sandbox of the suite's might meet, and the bare machines follow when it is over.
whole() {
	beside outside renice -n 0 -p
	say lint
	step_lint
	told outside
	say compat
	step_compat
	beside calm chrt --idle --pid 0
	beside vm renice -n 5 -p
	say host
	step_host
	beside unit renice -n 10 -p
	say vm
	told vm
	say bench
	step_bench
	say unit
	told calm
	told unit
}

beside_calm() {
	tables+=("host=$out/calm.json")
	unit calm -E "$calm"
	step_fuzz
}

# The guest has no go command: what TestOutsideTools builds goes with its payload. How that test ends is told by the suites.
beside_outside() { "$GO" test -count 1 -run '^TestOutsideTools$' "$integration" >/dev/null; }

beside_vm() { step_vm; }

beside_unit() {
	tables+=("host=$out/unit.json")
	unit unit -vE "$calm"
	step_bare
}

# beside NAME PRIORITY…: begins beside_NAME, at a priority that a command sets for a process. It ends with this script.
beside() {
	local name=$1
	shift
	rm -f "$out/$name.account"
	set -m # a process group of its own
	(
		set +m # and all that it starts, too
		"$@" "$BASHPID" >/dev/null
		# shellcheck disable=SC2030 # told by the account
		failed=() late=() tables=()
		"beside_$name" >"$out/$name.log" 2>&1
		{
			printf 'failed %s\n' "${failed[@]+"${failed[@]}"}"
			printf 'late %s\n' "${late[@]+"${late[@]}"}"
			printf 'tables %s\n' "${tables[@]+"${tables[@]}"}"
		} >"$out/$name.account"
	) </dev/null 8>&- &
	set +m
	besides[$name]=$!
}

# told NAME: waits for it, and takes over its log and its account.
told() {
	local to line
	wait "${besides[$1]}"
	unset "besides[$1]"
	cat "$out/$1.log"
	# shellcheck disable=SC2031 # this shell's own
	while read -r to line; do
		case $to:$line in
		*:) ;;
		failed:*) failed+=("$line") ;;
		late:*) late+=("$line") ;;
		tables:*) tables+=("$line") ;;
		esac
	done < <(cat "$out/$1.account" 2>/dev/null || echo "failed what runs beside as $1, which left no account")
}

# shellcheck disable=SC2317 # by a trap
end_besides() {
	local group
	for group in "${besides[@]+"${besides[@]}"}"; do kill -- "-$group" 2>/dev/null; done
}

step_unit() {
	tables+=("host=$out/unit.json")
	unit unit -e .
}

step_fuzz() {
	local dir name binary=$out/fuzz.test instrument=(-gcflags='agentrun/...=-d=libfuzzer')
	# Whose time is named gets guided by Go's library and all else, too, which is compiled once more for that.
	[[ -z ${FUZZTIME:-} ]] || instrument=(-fuzz .)
	while read -r dir; do
		# Linked once for all targets of a package, where go test -fuzz would do it for each.
		"$GO" test -c "${instrument[@]}" -o "$binary" "./$dir" || { failed+=("fuzz build of $dir"); continue; }
		while read -r name; do
			echo "$dir $name"
			# By count: at the end of a time the fuzzer now and then reports its own deadline as a failure.
			(cd "$dir" && "$binary" -test.run '^$' -test.fuzz "^$name\$" -test.fuzztime "${FUZZTIME:-3000x}" -test.fuzzminimizetime 10x \
				-test.fuzzcachedir "$out/fuzz/$dir") >"$out/fuzz.log" 2>&1 ||
				{ cat "$out/fuzz.log"; failed+=("fuzz $dir $name"); }
		done < <(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go | cut -c6-)
	done < <(git ls-files -co --exclude-standard '*_test.go' | xargs grep -l '^func Fuzz' | xargs -n1 dirname | sort -u)
}

step_bench() {
	[[ ! -e test/bench/main.go ]] || check_late "test/bench" "$GO" run ./test/bench -quick
}

# From a fresh clone, on a Debian that has only git and make; then the packages there.
step_bare() {
	check_late "make run on a bare machine" test/bare/run.sh
	check_late "make packages" make -s packages
	check_late "packages on a bare machine" test/bare/packages.sh
}

# One function, so that bash has read all of this file before it runs any: an edit while
# the tests run must not change what the rest of them does.
main() {
	mkdir -p "$out"
	# Two runs would write the same files, and both results would be nonsense.
	exec 8>"$out/lock"
	flock -n 8 || { echo "test/run.sh: another run uses $out" >&2; exit 2; }
	# The payload has sources, and ./... is to stay out of them while they are copied.
	echo 'module out' >"$out/go.mod"
	"$GO" build -o "$tool" ./tools/testtable || exit 1
	local steps=("$@") whole='' s f
	if [[ $# == 0 || $1 == all ]]; then whole=1 steps=(vm); fi
	# The VM's image, mostly waiting for packages, is made while the first steps run; the step itself tells what went wrong. What it
	# mounts meanwhile must not look like something that a sandbox left.
	if [[ " ${steps[*]} " == *" vm "* ]]; then unshare --mount test/vm/build.sh >/dev/null 2>&1 </dev/null 8>&- & fi
	if [[ -n $whole ]]; then
		whole
		again "$out/compat.json" -count 1 -timeout 30m
		again "$out/host.json" -race -count 1 -timeout 40m
		again "$out/unit.json" -race -count 1 -timeout 30m
		again "$out/calm.json" -race -count 1 -timeout 30m
		again_vm
		again_late try
	else
		for s in "${steps[@]}"; do
			declare -F "step_$s" >/dev/null || { echo "test/run.sh: no step $s" >&2; exit 2; }
			say "$s"
			"step_$s"
		done
		again_late
	fi
	say "results"
	if [[ -n $whole && -s $out/unit.json ]]; then attack_page "${tables[@]}"; fi
	if ((${#tables[@]} == 0)); then
		printf 'step failed: %s\n' "${failed[@]+"${failed[@]}"}" | grep -v ': $'
		((${#failed[@]} == 0))
		exit
	fi
	local args=()
	for f in "${failed[@]+"${failed[@]}"}"; do args+=(-step "$f"); done
	"$tool" report "${must_run[@]+"${must_run[@]}"}" "${args[@]+"${args[@]}"}" "${tables[@]}"
}

tool=$out/testtable
tables=()
declare -A besides=()
trap end_besides EXIT
main "$@"
exit
