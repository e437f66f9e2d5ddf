#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An agent that works through the tool gateway, its only way out of ring 3: it lists its tools, calculates, asks a model, and
is refused a connection.

Run it with: agentrun exec -- tools_agent.py
"""

import json
import os
import sys
import urllib.error
import urllib.request

TOOLS = os.environ.get("AGENTRUN_TOOLS_URL", "http://127.0.0.1:7600/internal/tools")
MODELS = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:7600/v1")


def send(url, body=None):
    """The reply as JSON, whether it is a result or a refusal: both say what they are."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=70) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return {"status": refusal.code, "denied": refusal.headers.get("X-Agentrun-Denied"), **json.load(refusal)}


def explain(error):
    return f"{error['code']}: {error['message']}; {error['next']}"


def main():
    listed = send(TOOLS)
    print("tools:", ", ".join(tool["name"] for tool in listed["tools"]))

    answer = send(TOOLS + "/math", {"args": {"expression": "6*7"}})
    print("math:", answer["output"] if answer["ok"] else explain(answer["error"]))

    chat = send(MODELS + "/chat/completions", {"messages": [{"role": "user", "content": "count:5"}]})
    print("model:", chat["choices"][0]["message"]["content"] if "choices" in chat else explain(chat["error"]))

    # urllib goes through the proxy of the environment, which knows that ring 3 has tools and nothing else.
    refused = send("http://example.com/")
    if "error" not in refused:
        print("NOT REFUSED: http://example.com/")
        return 1
    print("refused:", explain(refused["error"]))
    return 0 if answer["ok"] and "choices" in chat else 1


if __name__ == "__main__":
    sys.exit(main())
