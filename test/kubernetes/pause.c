// SPDX-License-Identifier: Apache-2.0
// What holds a pod's namespaces for runc, as the one of Kubernetes does.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

int main(void)
{
	signal(SIGTERM, _exit);
	signal(SIGINT, _exit);
	for (;;)
		pause();
}
