// SPDX-License-Identifier: Apache-2.0

// Package mask takes secrets and personal data out of text, JSON and streams of log lines before they are kept (M-18).
//
// Guarantees. What a rule finds is replaced as a whole by [masked:KIND]; no byte of it stays. Masking is idempotent, so
// that several layers may each do it: Text(Text(x)) == Text(x) for every x. Time is linear in the input whatever the
// input is: there is no backtracking and no regular expression, each rule looks a bounded distance ahead before it
// decides. Nothing is built before first use.
//
//	mask.Text("curl -H 'Authorization: Bearer abc123' https://bob:pw@host.example")
//	// curl -H 'Authorization: [masked:authorization]' https://bob:[masked:password]@host.example
//	m := mask.New(mask.Options{IPs: true, Known: []string{injectedKey}})
//	line, err := m.JSON(raw)
//	w := m.Writer(file, 0)
//
// Found: keys of common services by their prefix, AWS key ids, JWTs, bearer and basic credentials, private key blocks,
// passwords in URLs, values of sensitive names (password=…, "api_key": "…", --token …), cookies, e-mail addresses,
// international and North American phone numbers, IBANs by checksum, card numbers by issuer and Luhn, strings the caller
// knows to be secret; IP addresses if asked for. docs/logs.md has the list and what stays.
//
// Errors. JSON that doesn't parse, or is nested too deeply, gives an error and no output; Text can't fail.
//
// What it does not protect against. A secret in no known shape and beside no telling name is text like any other: a
// password in a sentence, a name, a street, a key cut in two by a newline, or encoded (base64, hex, gzip). Somebody who
// wants to smuggle a secret into a log can. So it is the second wall: the first is that plaintext isn't logged at all
// (telemetry.Plaintext).
//
// It fails towards masking: an unterminated quote or key block is masked to its end, and text that doesn't come to rest
// after a few passes is replaced whole.
//
// Why not a library. The maintained one, gitleaks' detect package, finds more services but no personal data, is made for
// files at rest, and costs 3 ms at each start and tens of times our time for each line; docs/dependencies.md has the
// figures.
package mask
