#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh on Debian's kernel with cgroup v2 only, in the VM of test/vm; `vm.sh systemd`: systemd.sh, beside systemd. Needs root, and half an hour without KVM.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=test/vm/carry.sh
. test/vm/carry.sh

carry engines iptables bsdutils
mkdir -p "$work/payload/test/engines"
cp test/engines/*.sh "$work/payload/test/engines/"
if [[ ${1:-} == systemd ]]; then
	cp test/engines/systemd.sh "$work/payload/try"
	cp test/vm/under-systemd.sh "$work/payload/then"
else
	echo 'AGENTRUN_ENGINES_IN=/work AGENTRUN_ENGINES_PATIENCE=300 COMPOSE_HTTP_TIMEOUT=300 exec bash test/engines/run.sh' >"$work/payload/then"
fi
tries 3000
