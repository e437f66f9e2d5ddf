#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A client of the Model Context Protocol over HTTP, as small as it can be: it lists its tools and calls one.

Run it with: agentrun exec -- client.py
"""

import itertools
import json
import os
import urllib.request

URL = os.environ.get("AGENTRUN_MCP_URL", "http://127.0.0.1:7600/mcp")
ids = itertools.count(1)


def send(method, params=None, notify=False):
    """The result of a request; a notification has none."""
    message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
    if not notify:
        message["id"] = next(ids)
    request = urllib.request.Request(URL, json.dumps(message).encode(), {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2025-06-18",
    })
    with urllib.request.urlopen(request, timeout=70) as reply:
        text = reply.read().decode()
        if "event-stream" in reply.headers.get("Content-Type", ""):
            text = next(line[5:] for line in text.splitlines() if line.startswith("data:"))
    if notify:
        return None
    answer = json.loads(text)
    if "error" in answer:
        raise RuntimeError(answer["error"]["message"])
    return answer["result"]


def call(name, **arguments):
    """What the tool puts out, or the code of its refusal, which is a result too: the model reads it and goes on."""
    try:
        result = send("tools/call", {"name": name, "arguments": arguments})
    except RuntimeError as refusal:
        return f"refused, {refusal}"
    text = result["content"][0]["text"]
    return "refused, " + json.loads(text)["error"]["code"] if result.get("isError") else text


server = send("initialize", {
    "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "example", "version": "1"},
})["serverInfo"]
send("notifications/initialized", notify=True)
print("server:", server["name"], server["version"])
print("tools:", ", ".join(tool["name"] for tool in send("tools/list")["tools"]))
print("math 6*7:", call("math", expression="6*7"))
print("math without an expression:", call("math"))
