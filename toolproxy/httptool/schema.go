// SPDX-License-Identifier: Apache-2.0

package httptool

import _ "embed"

// Schema is the JSON Schema of an `http:` section.
//
//go:embed schema.json
var Schema []byte
