#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# A daemon that runs goes on with its runs: a restart would end them. Until it is restarted, new runs are alone, since a client hands
# over only to a daemon of its own build.
set -e
[ -d /run/systemd/system ] || exit 0
systemctl daemon-reload || true
if systemctl -q is-active agentrun.service; then
	echo "agentrun: the daemon still runs the version before; systemctl restart agentrun ends its runs and starts the new one" >&2
fi
