#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Inside the VM: runs the compiled tests of each package in /payload/packages, in a
# copy of that package's folder. The marks are read by `testtable guest`.
export AGENTRUN_BIN=/payload/bin/agentrun AGENTRUN_PROBE=/payload/bin/probe
while read -r package; do
	echo "@@testtable begin agentrun/$package"
	cd "/payload/src/$package" || exit 1
	"/payload/tests/${package//\//--}.test" -test.v=test2json -test.timeout 18m 2>&1
	code=$?
	printf '\n@@testtable end %d\n' "$code"
done </payload/packages
exit 0
