# SPDX-License-Identifier: Apache-2.0
import hashlib
import secrets
import ssl

context = ssl.create_default_context()
print(hashlib.sha256(b"agentrun").hexdigest()[:12], len(secrets.token_bytes(32)), context.verify_mode.name)
