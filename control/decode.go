// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode"
	"unicode/utf8"
)

// fields are what an object may have: a name, and a pointer to what it is read into, or further fields.
type fields []struct {
	name string
	into any
}

func (f fields) find(name string) any {
	for _, one := range f {
		if one.name == name {
			return one.into
		}
	}
	return nil
}

// decodeBody reads a body. encoding/json by itself takes the last of two equal names, names in another case, null for
// anything and text that isn't UTF-8: an operator and whoever reviewed a request would see another one than what was done.
func decodeBody(body []byte, f fields) error {
	if len(body) == 0 {
		return nil
	}
	if !utf8.Valid(body) {
		return badField("body", "it isn't UTF-8")
	}
	return decodeObject("", body, f)
}

func decodeObject(prefix string, text []byte, f fields) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return badField(orBody(prefix), "want a JSON object")
	}
	seen := map[string]bool{}
	for d.More() {
		t, err := d.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return badField(orBody(prefix), "it isn't JSON")
		}
		into := f.find(name)
		path := prefix + printable(name)
		switch {
		case into == nil:
			return badField(path, "unknown field")
		case seen[name]:
			return badField(path, "it is given twice")
		}
		seen[name] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return badField(path, "it isn't JSON")
		}
		if err := decodeValue(path, value, into); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil { // the closing brace
		return badField(orBody(prefix), "it isn't JSON")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return badField(orBody(prefix), "something follows the object")
	}
	return nil
}

func orBody(prefix string) string {
	if prefix == "" {
		return "body"
	}
	return prefix[:len(prefix)-1]
}

func decodeValue(path string, value []byte, into any) error {
	if sub, ok := into.(fields); ok {
		return decodeObject(path+".", value, sub)
	}
	if string(value) == "null" {
		return badField(path, "want a value, not null")
	}
	if err := json.Unmarshal(value, into); err != nil {
		return badField(path, "it has the wrong type, or is out of range")
	}
	return nil
}

// checkText refuses what other operators' terminals and the audit's readers would not show as it is.
func checkText(name, s string, most int) error {
	if len(s) > most {
		return badField(name, fmt.Sprintf("want at most %d bytes", most))
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return badField(name, "want printable text in one line")
		}
	}
	return nil
}
