// SPDX-License-Identifier: Apache-2.0

// Package agentuid says from which user id on the host nobody is an operator.
//
//	if cred.Uid >= agentuid.First { … } // compared unsigned: the id of nobody is the largest one
//
// Runs are mapped to ids from there on (runtime), and sockets for operators answer nobody with such an id (control, handoff): it is one
// number so that the two can't drift apart. It doesn't tell agents of a rootless supervisor, whose ids are its user's subordinate ones.
package agentuid

// First lies above the range that systemd gives to containers (524288 to 0x6fffffff, "UIDs and GIDs on systemd systems"). The ranges of
// runs end at the last id that is positive as a 32-bit number, because old tools still parse ids as such; what lies above maps nobody.
const First = 0x70000000
