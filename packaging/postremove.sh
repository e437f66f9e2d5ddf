#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Configuration, keys and audit stay until dpkg is asked to purge; rpm has no such word, and leaves them. What is below /run goes with
# them, or at the next boot: a run without the daemon may still live after a removal, and agentrun of another place must find it.
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload || true
if [ "$1" = purge ]; then
	rm -rf /var/lib/agentrun /etc/agentrun /run/agentrun
fi
