#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the agents of the file versions below FOLDER, each into a prefix of its own: install.sh FOLDER [NAME…]
set -euo pipefail
here=$(dirname "$0") to=$1
shift
while read -r name package; do
	[[ $name == "#"* || ($# -gt 0 && " $* " != *" $name "*) ]] && continue
	[[ -x $to/$name/bin/$name ]] && continue
	mkdir -p "$to/$name"
	npm install --global --prefix "$to/$name" --no-audit --no-fund --loglevel error "$package"
done <"$here/versions"
