#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cat > hello.c <<'C'
#include <stdio.h>
int main(void) { puts("compiled"); return 0; }
C
printf 'hello: hello.c\n\tcc -O1 -o $@ $<\n' > Makefile
if command -v make > /dev/null; then make -s hello; else cc -o hello hello.c; fi
./hello
