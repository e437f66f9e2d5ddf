// SPDX-License-Identifier: Apache-2.0

package control

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"agentrun/rings"
)

type schema struct {
	Ref        string            `json:"$ref"`
	Type       any               `json:"type"`
	Required   []string          `json:"required"`
	Properties map[string]schema `json:"properties"`
	Items      *schema           `json:"items"`
	Values     *schema           `json:"additionalProperties"`
}

type document struct {
	OpenAPI string `json:"openapi"`
	Paths   map[string]map[string]struct {
		Parameters []struct{ Name, In string } `json:"parameters"`
	} `json:"paths"`
	Components struct {
		Schemas map[string]schema `json:"schemas"`
	} `json:"components"`
}

func readDocument(t *testing.T) (d document) {
	t.Helper()
	if err := json.Unmarshal([]byte(openAPI), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestM23DocumentHasTheRoutes(t *testing.T) {
	got := map[string][]string{}
	for path, methods := range readDocument(t).Paths {
		for method, op := range methods {
			queries := []string{}
			for _, p := range op.Parameters {
				if p.In == "query" {
					queries = append(queries, p.Name)
				}
			}
			got[strings.ToUpper(method)+" "+path] = queries
		}
	}
	for _, r := range routes() { // those that supervisors add: supervisor/live/node_test.go
		if diff := cmp.Diff(append([]string{}, r.queries...), got[r.method+" "+r.path]); diff != "" {
			t.Errorf("%s %s: parameters (-route +document):\n%s", r.method, r.path, diff)
		}
	}
}

func TestM23DocumentHasTheTypes(t *testing.T) {
	schemas := readDocument(t).Components.Schemas
	types := map[string]any{
		"Version": Version{}, "Pause": Pause{}, "Sandbox": Sandbox{}, "Inspection": Inspection{}, "SandboxList": SandboxList{}, "Limits": Limits{}, "Usage": Usage{},
		"Process": Process{}, "Elevation": Elevation{}, "ElevateRequest": ElevateRequest{}, "LimitChange": LimitChange{}, "Selector": Selector{},
		"KillRequest": KillRequest{}, "KillOneRequest": KillOneRequest{}, "KillResult": KillResult{}, "KillList": KillList{}, "RevokeRequest": RevokeRequest{},
		"SignalRequest": SignalRequest{}, "ExtendRequest": ExtendRequest{}, "ExecRequest": ExecRequest{}, "Lease": Lease{}, "Pressure": Pressure{}, "Event": Event{}, "Done": Done{}, "Error": Error{},
		"FilesRequest": FilesRequest{}, "FileInfo": FileInfo{}, "FileList": FileList{}, "FileChange": FileChange{}, "Copied": Copied{},
		"PortRequest": PortRequest{}, "PortRemoval": PortRemoval{}, "PortInfo": PortInfo{}, "PortList": PortList{}, "Published": Published{},
		"Kept": Kept{}, "KeptList": KeptList{}, "KeptRequest": KeptRequest{}, "KeptStart": KeptStart{}, "KeptStarted": KeptStarted{}, "KeptStop": KeptStop{},
		"KeptRename": KeptRename{}, "KeptFor": KeptFor{}, "KeptRemoval": KeptRemoval{},
		"Image": Image{}, "ImageList": ImageList{}, "ImagePull": ImagePull{}, "ImageRemoval": ImageRemoval{}, "ImageRemoved": ImageRemoved{},
		"KeptSnapshotName": KeptSnapshotName{}, "KeptFork": KeptFork{}, "KeptSnapshot": KeptSnapshot{},
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(types)), slices.Sorted(maps.Keys(schemas))); diff != "" {
		t.Fatalf("types and schemas differ:\n%s", diff)
	}
	for name, v := range types {
		compare(t, name, schemas[name], reflect.TypeOf(v), types)
	}
}

func compare(t *testing.T, name string, s schema, typ reflect.Type, types map[string]any) {
	t.Helper()
	want, required := map[string]reflect.Type{}, []string{}
	for _, f := range reflect.VisibleFields(typ) {
		tag := f.Tag.Get("json")
		if tag == "-" || tag == "" {
			continue
		}
		field, options, _ := strings.Cut(tag, ",")
		want[field] = f.Type
		if options == "" {
			required = append(required, field)
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(s.Properties))); diff != "" {
		t.Errorf("%s: fields (-Go +document):\n%s", name, diff)
	}
	slices.Sort(required)
	slices.Sort(s.Required)
	if diff := cmp.Diff(required, append([]string{}, s.Required...)); diff != "" {
		t.Errorf("%s: required (-Go +document):\n%s", name, diff)
	}
	for field, p := range s.Properties {
		if want[field] != nil && !fits(p, want[field], types) {
			t.Errorf("%s.%s: got %+v in the document for %v", name, field, p, want[field])
		}
	}
}

func fits(s schema, typ reflect.Type, types map[string]any) bool {
	if typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		return types[name] != nil && reflect.TypeOf(types[name]) == typ
	}
	is := func(want string) bool {
		if list, ok := s.Type.([]any); ok {
			return len(list) == 2 && list[0] == want && list[1] == "null"
		}
		return s.Type == want
	}
	switch typ {
	case reflect.TypeFor[json.RawMessage]():
		return s.Type == nil
	case reflect.TypeFor[time.Time]():
		return is("string")
	case reflect.TypeFor[rings.Ring]():
		return is("integer")
	}
	switch typ.Kind() {
	case reflect.String:
		return is("string")
	case reflect.Bool:
		return is("boolean")
	case reflect.Float64:
		return is("number")
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return is("integer")
	case reflect.Slice:
		return is("array") && s.Items != nil && fits(*s.Items, typ.Elem(), types)
	case reflect.Map:
		return is("object") && s.Values != nil && fits(*s.Values, typ.Elem(), types)
	}
	return false
}

// TestM23BodiesAreTheTypes: each field that the document has is one that the server reads, and no other.
func TestM23BodiesAreTheTypes(t *testing.T) {
	s := startServer(t, Access{})
	for path, typ := range map[string]reflect.Type{
		"kill": reflect.TypeFor[KillOneRequest](), "elevate": reflect.TypeFor[ElevateRequest](), "revoke": reflect.TypeFor[RevokeRequest](), "signal": reflect.TypeFor[SignalRequest](),
		"limits": reflect.TypeFor[Limits](), "extend": reflect.TypeFor[ExtendRequest](), "files": reflect.TypeFor[FilesRequest](), "ports": reflect.TypeFor[PortRequest](),
	} {
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			method := "POST"
			if path == "limits" {
				method = "PATCH"
			}
			status, text := s.raw(t, method+" /v1/sandboxes/r1/"+path, `{"`+name+`":[[]]}`)
			if status != 400 || !strings.Contains(text, name+": ") || strings.Contains(text, "unknown") {
				t.Errorf("%s %s: got %d %s, want 400 with its wrong type", path, name, status, text)
			}
		}
	}
}
