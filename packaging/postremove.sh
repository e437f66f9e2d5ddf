#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Configuration, keys and audit stay until dpkg is asked to purge; rpm has no such word, and leaves them.
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload || true
if [ "$1" = purge ]; then
	rm -rf /var/lib/agentrun /etc/agentrun
fi
