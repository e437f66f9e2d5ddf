#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ring 3: a shell by itself, without a single child.
set -euo pipefail
declare -A count
while read -r word; do count[$word]=$((${count[$word]:-0} + 1)); done <<< $'a\nb\na'
printf '%s%s ' a "${count[a]}" b "${count[b]}"
[[ "file.tar.gz" =~ ^([^.]*)\.(.*)$ ]] && echo "${BASH_REMATCH[2]}"
echo kept > "$TMPDIR/f" && read -r line < "$TMPDIR/f" && echo "$line"
