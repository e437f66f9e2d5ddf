// SPDX-License-Identifier: Apache-2.0
//
// crowd N      is N processes that sleep, says "up" when all are there
// crowd bomb   forks in every process without end, says "up" when a limit first stops it
//
// What a kill has to find and end.

#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int up(void) { return write(1, "up\n", 3) == 3; }

static int bomb(void) {
	int first = 1, told = 0;
	for (;;) {
		pid_t pid = fork();
		if (pid == 0) first = 0;
		if (pid < 0 && first && !told && !up()) return 1;
		if (pid < 0) told = 1;
	}
}

int main(int argc, char **argv) {
	if (argc == 2 && !strcmp(argv[1], "bomb")) return bomb();
	long n = argc == 2 ? atol(argv[1]) : 0;
	if (n < 1) {
		fprintf(stderr, "usage: crowd N | bomb\n");
		return 2;
	}
	for (long i = 1; i < n; i++) {
		pid_t pid = fork();
		if (pid < 0) {
			perror("fork");
			return 1;
		}
		if (pid == 0) for (;;) pause();
	}
	if (!up()) return 1;
	for (;;) pause();
}
