// SPDX-License-Identifier: Apache-2.0

#ifndef AGENTRUN_HANDOFF_CLIENT_H
#define AGENTRUN_HANDOFF_CLIENT_H

const char *agentrun_declined(void);
int agentrun_build_id(unsigned char *to, int room);

#endif
