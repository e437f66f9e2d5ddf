// SPDX-License-Identifier: Apache-2.0

package cmdtool

import _ "embed"

// Schema is the JSON Schema of a `command:` section.
//
//go:embed schema.json
var Schema []byte
