#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
git init -q -b main repo && cd repo
git config user.email agent@example.org && git config user.name agent
echo one > f && git add f && git commit -qm one
git checkout -qb side && echo two >> f && git commit -qam two
git checkout -q main && echo other > g && git add g && git commit -qm other
git merge -q -m merged side
git clone -q . ../clone && git -C ../clone rev-list --count HEAD
git gc -q && git fsck --no-progress && git stash list
git worktree add -q ../tree side && cat ../tree/f
echo three >> f && git diff --stat | tail -1 | xargs
