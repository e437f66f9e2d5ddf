#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# dpkg says remove, rpm 0, where it isn't an upgrade.
set -e
case $1 in
remove | 0)
	[ ! -d /run/systemd/system ] || systemctl -q disable --now agentrun.socket agentrun.service || true
	;;
esac
