// SPDX-License-Identifier: Apache-2.0

package mcptool

import _ "embed"

// Schema is the JSON Schema of an `mcp:` section.
//
//go:embed schema.json
var Schema []byte
