// SPDX-License-Identifier: Apache-2.0

package httptool

import (
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/tools"
)

// place puts the arguments where the configuration wants them: URL and body. No argument is left out silently, so send:
// none takes only those of the path.
func (t *Tool) place(rawArgs []byte) (string, []byte, *gate.Error) {
	args := map[string]json.RawMessage{}
	if err := json.Unmarshal(rawArgs, &args); err != nil {
		return "", nil, tools.BadArguments("the arguments are no JSON object")
	}
	path, err := t.url.expand(func(name string) (string, bool) {
		raw, ok := args[name]
		delete(args, name)
		v, scalar := scalarOf(raw)
		return v, ok && scalar
	})
	if err != nil {
		return "", nil, tools.BadArguments("argument %v", err)
	}
	query := t.url.base.RawQuery
	var body []byte
	switch {
	case t.config.Send == sendJSON:
		if body, err = json.Marshal(args); err != nil {
			return "", nil, tools.BadArguments("the arguments can't be encoded")
		}
	case t.config.Send == sendNone && len(args) > 0:
		return "", nil, tools.BadArguments("the tool takes no other arguments than those of its path")
	case t.config.Send == sendQuery:
		more, bad := t.query(args)
		if bad != nil {
			return "", nil, bad
		}
		query = strings.Trim(query+"&"+more, "&")
	}
	u := t.url.base.Scheme + "://" + t.url.base.Host + path
	if query != "" {
		u += "?" + query
	}
	if len(u) > 4*maxURL {
		return "", nil, tools.BadArguments("the arguments make a URL of more than %d bytes", 4*maxURL)
	}
	return u, body, nil
}

// Fits tells whether these arguments can be placed.
func (t *Tool) Fits(rawArgs []byte) *gate.Error {
	_, _, bad := t.place(rawArgs)
	return bad
}

// query refuses a name that the operator's URL has already, as any server may read it: which of two equal ones counts differs between
// servers (parameter pollution).
func (t *Tool) query(args map[string]json.RawMessage) (string, *gate.Error) {
	fixed := map[string]bool{}
	for name := range t.url.base.Query() {
		fixed[parameter(name)] = true
	}
	values := url.Values{}
	for name, raw := range args {
		if fixed[parameter(name)] || fixed[parameter(listed(name))] {
			return "", tools.BadArguments("argument %.64q is set by the operator", name)
		}
		items := []json.RawMessage{raw}
		if len(raw) > 0 && raw[0] == '[' {
			if err := json.Unmarshal(raw, &items); err != nil {
				return "", tools.BadArguments("argument %.64q is no list", name)
			}
		}
		for _, item := range items {
			if string(item) == "null" {
				continue
			}
			v, ok := scalarOf(item)
			if !ok {
				return "", tools.BadArguments("argument %.64q goes into the query and can't be an object", name)
			}
			values.Add(name, v)
		}
	}
	return values.Encode(), nil
}

// parameter is a name as lenient servers take it: without its case (ASP.NET) and white space around it, and with an underscore for a dot, a
// space or a bracket within (PHP).
func parameter(name string) string {
	return strings.ToLower(strings.ToUpper(strings.NewReplacer(".", "_", " ", "_", "[", "_").Replace(strings.TrimSpace(name))))
}

// listed is the name that a list or an object goes by, which PHP, Rack and others make of a name with brackets, in the place of its plain
// value; nor do all read on behind a NUL.
func listed(name string) string {
	if at := strings.IndexAny(name, "[\x00"); at > 0 {
		name = name[:at]
	}
	return name
}

// scalarOf is the text of a string, number or boolean.
func scalarOf(raw json.RawMessage) (string, bool) {
	switch {
	case len(raw) == 0 || slices.Contains([]byte("{[n"), raw[0]):
		return "", false
	case raw[0] == '"':
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err == nil
	}
	return string(raw), true
}
