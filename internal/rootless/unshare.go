// SPDX-License-Identifier: Apache-2.0

package rootless

/*
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

static int agentrun_unshare_errno = -1, agentrun_cgroup_namespace;

// A process with several threads can't change its user namespace (unshare(2)), and Go has several as soon as it runs. The variable gives
// no right: whoever can set it can call unshare(2). It is taken out of the environment so that no child does this too.
__attribute__((constructor)) static void agentrun_unshare(void)
{
	const char *wish = getenv("_AGENTRUN_UNSHARE");

	if (wish == NULL)
		return;
	int flags = CLONE_NEWUSER | CLONE_NEWNS | (wish[0] == 'c' ? CLONE_NEWCGROUP : 0);

	unsetenv("_AGENTRUN_UNSHARE");
	if (geteuid() == 0)
		return;
	agentrun_unshare_errno = unshare(flags) == 0 ? 0 : errno;
	agentrun_cgroup_namespace = (flags & CLONE_NEWCGROUP) != 0;
}

static int agentrun_unshared(void) { return agentrun_unshare_errno; }
static int agentrun_has_cgroup_namespace(void) { return agentrun_cgroup_namespace; }
*/
import "C"

import "golang.org/x/sys/unix"

// unshareVariable is what the constructor above looks for.
const unshareVariable = "_AGENTRUN_UNSHARE"

// unshared tells what became of the unshare(2) at the start of this process; asked is false if there was none.
func unshared() (asked bool, err error) {
	switch n := int(C.agentrun_unshared()); n {
	case -1:
		return false, nil
	case 0:
		return true, nil
	default:
		return true, unix.Errno(n)
	}
}

// hasCgroup tells whether it made a cgroup namespace too.
func hasCgroup() bool { return C.agentrun_has_cgroup_namespace() != 0 }
