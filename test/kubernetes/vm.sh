#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh without the Deployment, or the parts given, on Debian's kernel with cgroup v2 only, in the VM of test/vm. Needs root, and a quarter of an hour without KVM.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=test/vm/carry.sh
. test/vm/carry.sh

[[ -n ${AGENTRUN_KUBERNETES_BUILT-} ]] || bash test/kubernetes/build.sh .cache/kubernetes
carry kubernetes bsdutils
mkdir -p "$work/payload/.cache" "$work/payload/test"
cp -r .cache/kubernetes "$work/payload/.cache/"
cp -r test/kubernetes "$work/payload/test/"
cp -r packaging "$work/payload/"
printf 'export AGENTRUN_KUBERNETES_BUILT=1 AGENTRUN_KUBERNETES_IN=/work AGENTRUN_KUBERNETES_PATIENCE=5\nexec bash test/kubernetes/run.sh %s\n' "${*:-cri pods network kills nodeagent}" >"$work/payload/then"
AGENTRUN_VM_MEMORY=6G tries 5400
