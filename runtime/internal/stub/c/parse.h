/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What the supervisor tells the stub, in three messages: what the sandbox is made of, how the agent's
 * process is confined, which may be known long before there is an agent, and what it executes. Written by
 * stub.Sandbox, stub.Confinement and stub.Command in message.go; the two sides are held together by
 * round-trip tests and fuzzers.
 *
 * Layout, native byte order, no padding. The sandbox:
 *
 *   u32 magic, u32 version, u32 flags, u32 namespaces (CLONE_NEW*), u32 owner, u32 agent
 *   string hostname, string root, string clocks (for /proc/self/timens_offsets; empty: none)
 *
 * The confinement:
 *
 *   u32 magic, u32 version, u32 flags, u32 nrlimits, u32 nrules, u32 nbpf
 *   u64 landlock_fs, u64 landlock_scoped
 *   nrlimits x { u64 resource, u64 cur, u64 max }
 *   nbpf x 8 bytes (struct sock_filter)
 *   nrules x { u64 access, string path }
 *   string cwd
 *
 * The command:
 *
 *   u32 magic, u32 version, u32 nargs, u32 nenv
 *   string exe, string cwd, nargs x string, nenv x string
 *
 * An empty cwd leaves the process where it is.
 *
 * A string is u32 length (without the NUL), the bytes, one NUL. The NUL lets the stub point into
 * the message instead of copying. Nothing may remain after the last string.
 */
#ifndef AGENTRUN_PARSE_H
#define AGENTRUN_PARSE_H

#include <stddef.h>
#include <stdint.h>

enum {
	MSG_MAGIC = 0x31524741, /* "AGR1" */
	MSG_COMMAND = 0x31434741, /* "AGC1" */
	MSG_SANDBOX = 0x31534741, /* "AGS1" */
	MSG_VERSION = 3,
	MSG_MAX = 4 << 20, /* argv and environment of a run; execve(2) itself stops at ARG_MAX */
	MAX_STRINGS = 16384,
	MAX_RLIMITS = 16,
	MAX_RULES = 64,
	MAX_BPF = 4096, /* BPF_MAXINSNS, bpf_common.h */

	FLAG_TTY = 1,           /* stdio is a pty the stub opens */
	FLAG_WAIT_KILLABLE = 2, /* SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 5.19 */
	FLAG_LANDLOCK = 4,      /* a Landlock domain is wanted */
	FLAG_LANDLOCK_LATE = 8, /* entered with the command: until then the supervisor may add rules */
	FLAG_ALL = 15,

	FLAG_AGAIN = 1, /* pid 1 executes its file in the sandbox once more */
};

struct sandbox {
	uint32_t flags, namespaces, owner, agent;
	const char *hostname, *root, *clocks;
	uint32_t hostlen, clockslen;
};

struct rlim {
	uint64_t resource, cur, max;
};

struct rule {
	uint64_t access;
	const char *path;
};

struct confinement {
	uint32_t flags, nrlimits, nrules, nbpf;
	uint64_t landlock_fs, landlock_scoped;
	struct rlim rlimits[MAX_RLIMITS];
	struct rule rules[MAX_RULES];
	const char *bpf; /* nbpf * 8 bytes, unaligned is fine: the kernel copies it */
	const char *cwd;
};

struct command {
	uint32_t nargs, nenv;
	const char *exe, *cwd;
	const char *argv[MAX_STRINGS + 1];
	const char *envp[MAX_STRINGS + 1];
};

struct cursor {
	const unsigned char *p;
	size_t left;
};

static int take(struct cursor *c, void *out, size_t n)
{
	if (c->left < n)
		return -1;
	for (size_t i = 0; i < n; i++)
		((unsigned char *)out)[i] = c->p[i];
	c->p += n;
	c->left -= n;
	return 0;
}

static int take_u32(struct cursor *c, uint32_t *out, uint32_t most)
{
	if (take(c, out, sizeof(*out)) || *out > most)
		return -1;
	return 0;
}

/* take_string points *out into the message: the bytes hold no NUL but the one that ends them. */
static int take_string(struct cursor *c, const char **out)
{
	uint32_t n;

	if (take_u32(c, &n, MSG_MAX) || c->left < (size_t)n + 1)
		return -1;
	for (uint32_t i = 0; i < n; i++)
		if (c->p[i] == 0)
			return -1;
	if (c->p[n] != 0)
		return -1;
	*out = (const char *)c->p;
	c->p += (size_t)n + 1;
	c->left -= (size_t)n + 1;
	return 0;
}

static int take_strings(struct cursor *c, const char **out, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (take_string(c, &out[i]))
			return -1;
	out[n] = 0;
	return 0;
}

static int take_head(struct cursor *c, uint32_t magic)
{
	uint32_t v;

	if (take_u32(c, &v, UINT32_MAX) || v != magic || take_u32(c, &v, UINT32_MAX) || v != MSG_VERSION)
		return -1;
	return 0;
}

/* parse_sandbox fills s from a whole message. No namespaces, no root and user 0 are never meant. */
static int parse_sandbox(struct sandbox *s, const void *buf, size_t len)
{
	struct cursor c = { buf, len };

	if (take_head(&c, MSG_SANDBOX) || take_u32(&c, &s->flags, FLAG_AGAIN) || take_u32(&c, &s->namespaces, UINT32_MAX) ||
	    take_u32(&c, &s->owner, UINT32_MAX) || take_u32(&c, &s->agent, UINT32_MAX) || s->namespaces == 0 || s->agent == 0)
		return -1;
	if (take_string(&c, &s->hostname) || take_string(&c, &s->root) || take_string(&c, &s->clocks) || *s->hostname == 0 || *s->root != '/')
		return -1;
	for (s->hostlen = 0; s->hostname[s->hostlen]; s->hostlen++)
		;
	for (s->clockslen = 0; s->clocks[s->clockslen]; s->clockslen++)
		;
	return c.left == 0 ? 0 : -1;
}

/* parse_confinement fills l from a whole message; anything odd, short or left over is refused. */
static int parse_confinement(struct confinement *l, const void *buf, size_t len)
{
	struct cursor c = { buf, len };

	if (take_head(&c, MSG_MAGIC) || take_u32(&c, &l->flags, FLAG_ALL) || take_u32(&c, &l->nrlimits, MAX_RLIMITS) ||
	    take_u32(&c, &l->nrules, MAX_RULES) || take_u32(&c, &l->nbpf, MAX_BPF))
		return -1;
	/* No filter is never meant: an empty message must not confine nothing. */
	if (l->nbpf == 0 || ((l->flags & FLAG_LANDLOCK_LATE) && !(l->flags & FLAG_LANDLOCK)))
		return -1;
	if (take(&c, &l->landlock_fs, 8) || take(&c, &l->landlock_scoped, 8))
		return -1;
	/* Rights without the flag would be a domain that is said and never entered. */
	if (!(l->flags & FLAG_LANDLOCK) != (l->landlock_fs == 0))
		return -1;
	for (uint32_t i = 0; i < l->nrlimits; i++)
		if (take(&c, &l->rlimits[i], sizeof(l->rlimits[i])))
			return -1;
	l->bpf = (const char *)c.p;
	if (c.left < (size_t)l->nbpf * 8)
		return -1;
	c.p += (size_t)l->nbpf * 8;
	c.left -= (size_t)l->nbpf * 8;
	for (uint32_t i = 0; i < l->nrules; i++)
		if (take(&c, &l->rules[i].access, 8) || take_string(&c, &l->rules[i].path))
			return -1;
	if (take_string(&c, &l->cwd))
		return -1;
	return c.left == 0 ? 0 : -1;
}

/* parse_command likewise. No program and no argv[0] are never meant: an empty message must not start anything. */
static int parse_command(struct command *m, const void *buf, size_t len)
{
	struct cursor c = { buf, len };

	if (take_head(&c, MSG_COMMAND) || take_u32(&c, &m->nargs, MAX_STRINGS) || take_u32(&c, &m->nenv, MAX_STRINGS) || m->nargs == 0)
		return -1;
	if (take_string(&c, &m->exe) || *m->exe == 0 || take_string(&c, &m->cwd))
		return -1;
	if (take_strings(&c, m->argv, m->nargs) || take_strings(&c, m->envp, m->nenv))
		return -1;
	return c.left == 0 ? 0 : -1;
}

#endif
