#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the pid 1 stub that stub.go embeds. No libc, no relocations, nothing writable and executable.
set -eu
cd "$(dirname "$0")/c"
"${CC:-gcc}" -std=gnu11 -Os -Wall -Wextra -Werror -static -nostdlib -nostartfiles -ffreestanding \
	-fno-pie -no-pie -fno-stack-protector -fno-asynchronous-unwind-tables -fcf-protection=none \
	-Wl,--build-id=none -Wl,-z,noexecstack -Wl,-z,separate-code -s -o ../stub.bin.tmp init.c
mv ../stub.bin.tmp ../stub.bin
