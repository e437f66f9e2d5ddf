# SPDX-License-Identifier: Apache-2.0
"""What the host, its editors and other agents run later from a workspace: hooks, filters, tasks, environment files, settings."""
import os

from run import MARK, WORKSPACE

HOSTS = [".git/hooks/post-checkout", ".git/config", ".git/info/attributes", ".gitattributes", ".gitmodules", ".husky/pre-commit", ".pre-commit-config.yaml",
         ".envrc", ".env", ".bashrc", "Makefile", "package.json", "setup.py", "conftest.py", "sitecustomize.py", "build.rs", ".cargo/config.toml", ".npmrc", ".yarnrc.yml",
         ".vscode/tasks.json", ".vscode/settings.json", ".idea/runConfigurations/x.xml", ".devcontainer/devcontainer.json", ".github/workflows/x.yml", "Dockerfile",
         ".claude/settings.json", ".cursor/mcp.json", ".mcp.json", "AGENTS.md", "CLAUDE.md", ".gemini/settings.json", ".aider.conf.yml", ".tool-versions", "mise.toml", "agentrun.yaml"]
EVERY = ["ring1", "ring2"]
# What agentrun guards at the top of a workspace (docs/protected-paths.md): refused in every ring.
GUARDED = (".git/hooks/", ".git/config", ".git/info/attributes", ".gitattributes", ".gitmodules", ".husky/", ".envrc", ".npmrc", ".yarnrc.yml", ".vscode/", ".idea/",
           ".devcontainer/", ".github/workflows/", ".claude/", ".cursor/", ".mcp.json", ".gemini/", ".aider.conf.yml", ".tool-versions")
WORKS = {"leave " + name: EVERY for name in HOSTS if not name.startswith(GUARDED)}
WORKS |= {"leave a link to /etc/passwd": EVERY, "leave a FIFO": EVERY, "leave a name of control characters": EVERY}


def leave(name):
    path = os.path.join(WORKSPACE, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "a") as f:
        f.write(MARK)
    with open(path) as f:  # /dev/null takes it, and has nothing
        return MARK in f.read()


def attack(a):
    for name in HOSTS:
        a.step("leave " + name, leave, name)
    a.step("leave a link to /etc/passwd", lambda: os.symlink("/etc/passwd", WORKSPACE + "/link") is None)
    a.step("leave a FIFO", lambda: os.mkfifo(WORKSPACE + "/fifo") is None)
    a.step("leave a name of control characters", lambda: os.mkdir(WORKSPACE + "/\x1b]0;x\x07") is None)
    a.step("leave a set-ID program", lambda: os.chmod(WORKSPACE, 0o6755) is None)
    a.step("leave a device", lambda: os.mknod(WORKSPACE + "/null", 0o020666, os.makedev(1, 3)) is None)
