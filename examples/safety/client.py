#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A client of the Model Context Protocol over standard streams: it starts the server "safety" of a configuration and tells it
three intentions.

Run it with: python3 client.py mcp.json
"""

import itertools
import json
import subprocess
import sys

INTENTIONS = ["reading docs/guide.md to find the flag", "git push origin main", "drop_table users on the staging database"]

with open(sys.argv[1]) as file:
    server = json.load(file)["mcpServers"]["safety"]
process = subprocess.Popen([server["command"], *server["args"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
ids = itertools.count(1)


def send(method, params=None, notify=False):
    message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
    if not notify:
        message["id"] = next(ids)
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()
    while not notify:
        line = process.stdout.readline()
        if not line:
            sys.exit("the server hung up")
        answer = json.loads(line)
        if answer.get("id") == message["id"]:
            return answer["result"]


def intend(hint):
    step = {"element_name": "example", "nextActionHint": hint}
    reply = json.loads(send("tools/call", {
        "name": "mcp_aql_create", "arguments": {"operation": "record_execution_step", "params": step},
    })["content"][0]["text"])
    if not reply["success"]:
        return reply["error"]["code"]
    directive = reply["data"]
    if directive.get("stopped"):
        return "stop"
    return "continue" if directive["continue"] else "pause"


send("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "example", "version": "1"}})
send("notifications/initialized", notify=True)
print("tools:", ", ".join(sorted(tool["name"] for tool in send("tools/list")["tools"])))
for hint in INTENTIONS:
    print(f"{hint}: {intend(hint)}")
process.stdin.close()
process.wait()
