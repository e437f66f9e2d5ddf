#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
printf '%s\n' pear apple fig | sort | paste -sd,
diff <(seq 3) <(seq 4) || echo "differ $?"
mkfifo pipe && { echo through-fifo > pipe & } && cat pipe && wait
(sleep 30 & kill $!; wait $! || echo "killed $?")
cat <<< "here string"
find /workspace -maxdepth 1 -name 'shell.*' | xargs -n1 basename
tar -C /workspace -cf - shell.sh | tar -tf -
awk 'BEGIN { while (("echo piped" | getline l) > 0) print l }'
timeout 0.1 sleep 30 || echo "timeout $?"
cp -a shell.sh copy.sh && chmod 700 copy.sh && stat -c %a copy.sh
trap 'echo trapped' USR1; kill -USR1 $$
ulimit -c
