// SPDX-License-Identifier: Apache-2.0

package pdp

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
	"github.com/cedar-policy/cedar-go/x/exp/schema"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"

	"agentrun/internal/read"
	"agentrun/rings"
)

//go:embed schema.cedarschema
var schemaText []byte

//go:embed base.cedar
var baseText []byte

//go:embed grant.cedar
var grantText []byte

// Schema returns the Cedar schema that policies are held to.
func Schema() []byte { return append([]byte(nil), schemaText...) }

// Builtin returns the built-in guards and the grant, in the Cedar language.
func Builtin() []byte { return append(append([]byte(nil), baseText...), grantText...) }

// File is a policy file's name, for messages, and its text.
type File struct {
	Name string
	Text []byte
}

// policy is one compiled policy.
type policy struct {
	id       cedar.PolicyID
	compiled *cedar.Policy
	reason   rings.Code // of a forbid
	critical bool       // @severity("critical")
	where    string
	seq      int // place in the set: of two equal reasons the earlier policy is named
}

// Set is a set of policies that passed the checks: the guards, the operator's, and the built-in grant if the operator's
// permit nothing. It never changes. The zero value and nil refuse everything.
type Set struct {
	forbids, permits index
	byID             map[cedar.PolicyID]*policy
	revision         string
	operators        int
	granted          bool
}

// Revision is a digest of the guards and of every file by name and content.
func (s *Set) Revision() string { return s.revision }

// Len returns the number of the operator's policies.
func (s *Set) Len() int { return s.operators }

// BuiltinGrant tells whether the built-in grant is part of the set: the operator's files have no permit of their own.
func (s *Set) BuiltinGrant() bool { return s.granted }

// Compile returns the set made of the operator's files, none for the built-in policies alone; or a *read.InvalidError. Files without any
// policy are a problem: an empty folder looks like one whose contents were lost, forbids and all.
func Compile(files []File) (*Set, error) {
	b := builder{set: &Set{byID: map[cedar.PolicyID]*policy{}}}
	b.add(File{"base.cedar", baseText}, true)
	b.permits = 0
	for _, f := range files {
		b.add(f, false)
	}
	b.set.operators = b.operators
	if len(files) > 0 && b.operators == 0 && len(b.problems) == 0 {
		b.problem(files[0].Name, 0, "", "there is no policy in it, nor in any other file")
	}
	if b.permits == 0 {
		b.set.granted = true
		b.add(File{"grant.cedar", grantText}, true)
	}
	if err := b.problems.Err(); err != nil {
		return nil, err
	}
	b.set.revision = revision(files)
	return b.set, nil
}

func revision(files []File) string {
	h := sha256.New()
	for _, f := range append([]File{{"base", baseText}, {"grant", grantText}, {"schema", schemaText}}, files...) {
		fmt.Fprintf(h, "%d %s %d ", len(f.Name), f.Name, len(f.Text)) // lengths, so that no text can pass for two
		h.Write(f.Text)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// schemaOnce: the schema is parsed when the first policy is, not at start. It is embedded; a fault in it is a bug, which every
// test would meet, and at run time every policy would then be refused.
var schemaOnce = sync.OnceValues(func() (*validate.Validator, error) {
	var s schema.Schema
	s.SetFilename("schema.cedarschema")
	if err := s.UnmarshalCedar(schemaText); err != nil {
		return nil, err
	}
	resolved, err := s.Resolve()
	if err != nil {
		return nil, err
	}
	return validate.New(resolved, validate.WithStrict()), nil
})

type builder struct {
	set                *Set
	problems           read.Problems
	operators, permits int
	seq                int
}

func (b *builder) problem(file string, line int, id, message string) {
	b.problems = append(b.problems, read.Problem{File: file, Line: line, Path: id, Message: message})
}

func (b *builder) add(f File, builtin bool) {
	if line, wrong := measure(string(f.Text)); wrong != "" {
		b.problem(f.Name, line, "", wrong)
		return
	}
	list, err := cedar.NewPolicyListFromBytes(f.Name, f.Text)
	if err != nil {
		line, message := parseError(err)
		b.problem(f.Name, line, "", message)
		return
	}
	if b.operators+len(list) > MaxPolicies {
		b.problem(f.Name, 0, "", fmt.Sprintf("more than %d policies", MaxPolicies))
		return
	}
	for _, p := range list {
		b.policy(f.Name, p, builtin)
	}
}

func (b *builder) policy(file string, compiled *cedar.Policy, builtin bool) {
	line := compiled.Position().Line
	notes := compiled.Annotations()
	p := &policy{compiled: compiled, where: file + ":" + strconv.Itoa(line), seq: b.seq}
	b.seq++
	id, named := notes["id"]
	p.id = cedar.PolicyID(id)
	if !named {
		p.id = cedar.PolicyID(p.where)
	} else if wrong := wrongID(string(id), builtin); wrong != "" {
		b.problem(file, line, fmt.Sprintf("%.64q", string(id)), wrong)
		return
	}
	if other, twice := b.set.byID[p.id]; twice {
		b.problem(file, line, string(p.id), "has the same id as the policy at "+other.where)
		return
	}
	var wrong string
	if p.reason, wrong = reasonOf(compiled); wrong != "" {
		b.problem(file, line, string(p.id), wrong)
	}
	if p.critical, wrong = severityOf(compiled); wrong != "" {
		b.problem(file, line, string(p.id), wrong)
	}
	b.validate(file, line, p)
	b.set.byID[p.id] = p
	if !builtin {
		b.operators++
	}
	if compiled.Effect() == cedar.Forbid {
		b.set.forbids.add(p)
	} else {
		b.permits++
		b.set.permits.add(p)
	}
}

// wrongID keeps ids fit for logs, and keeps an operator's policy from passing for a guard.
func wrongID(id string, builtin bool) string {
	switch {
	case rings.CheckAgentID(id) != nil:
		return "@id must be letters, digits and . _ : - inside, at most 256 bytes"
	case !builtin && (strings.HasPrefix(id, "base.") || strings.HasPrefix(id, "default.")):
		return "@id must not begin with base. or default., the names of the built-in policies"
	}
	return ""
}

func reasonOf(p *cedar.Policy) (reason rings.Code, wrong string) {
	text, given := p.Annotations()["reason"]
	reason = rings.Code(text)
	switch {
	case p.Effect() == cedar.Permit && given:
		return "", "@reason belongs to a forbid"
	case p.Effect() == cedar.Permit:
		return "", ""
	case !given:
		return CodeACLBlock, ""
	case !KnownReason(reason):
		return "", fmt.Sprintf("@reason %.64q is none of %v", string(text), order)
	}
	return reason, ""
}

// severityOf reads @severity, whose words are those of H-24. One that is misspelt is a fault: it would kill nobody.
func severityOf(p *cedar.Policy) (critical bool, wrong string) {
	text, given := p.Annotations()["severity"]
	switch {
	case !given:
		return false, ""
	case p.Effect() == cedar.Permit:
		return false, "@severity belongs to a forbid"
	}
	switch text {
	case "low", "medium", "high":
		return false, ""
	case "critical":
		return true, ""
	}
	return false, fmt.Sprintf("@severity %.64q is none of low, medium, high and critical", string(text))
}

func (b *builder) validate(file string, line int, p *policy) {
	v, err := schemaOnce()
	if err == nil {
		err = v.Policy("", (*ast.Policy)(p.compiled.AST()))
	}
	if err != nil {
		b.problem(file, line, string(p.id), strings.ReplaceAll(err.Error(), "\n", "; "))
	}
}

// parseError takes the line out of the library's message, which is the only place that has it.
func parseError(err error) (line int, message string) {
	for inner := errors.Unwrap(err); inner != nil; inner = errors.Unwrap(inner) {
		err = inner
		if position().MatchString(err.Error()) {
			break
		}
	}
	message = err.Error()
	if m := position().FindStringSubmatch(message); m != nil {
		line, _ = strconv.Atoi(m[1])
		message = strings.Replace(strings.TrimSpace(m[3]), ": exact got ", ": got ", 1)
		return line, "column " + m[2] + ": " + strings.TrimPrefix(message, ": ")
	}
	return 0, message
}

var position = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`<input>:(\d+):(\d+):?([\s\S]*)`) })
