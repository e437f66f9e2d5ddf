// SPDX-License-Identifier: Apache-2.0

package cmdtool

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"

	gojson "github.com/go-json-experiment/json"

	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// CodeName is the name of the tool that CodeExecutor defines; its commands are CodeName/LANGUAGE.
const CodeName = "code-executor"

const codeSchema = `{
  "type": "object",
  "properties": {
    "language": {"enum": ["python", "javascript", "sh"]},
    "code": {"type": "string", "minLength": 1, "maxLength": 262144},
    "stdin": {"type": "string", "maxLength": 262144, "description": "what the program reads from its standard input; python and javascript only"}
  },
  "required": ["language", "code"],
  "additionalProperties": false
}`

// The programs read {"code":…,"stdin":…} and are the same for every call: code never stands in a command line, where
// other processes could read it and quoting could break. Both streams of output become one.
const (
	pythonStart = `import io,json,os,sys
os.dup2(1,2)
_=json.load(sys.stdin)
sys.stdin=io.StringIO(_["stdin"])
sys.argv=["code"]
exec(compile(_["code"],"code","exec"),{"__name__":"__main__"})`

	nodeStart = `const i=JSON.parse(require("fs").readFileSync(0,"utf8"));
process.stderr.write=process.stdout.write.bind(process.stdout);
process.on("uncaughtException",e=>{require("fs").writeSync(1,String(e&&e.stack||e)+"\n");process.exit(1)});
Object.defineProperty(process,"stdin",{value:require("stream").Readable.from(i.stdin===""?[]:[i.stdin])});
globalThis.require=require;
require("vm").runInThisContext(i.code,{filename:"code"})`
)

// CodeOptions say how the interpreters are found and bounded. The zero value has Debian's places and the ring's limits.
type CodeOptions struct {
	Supervisor link.Supervisor
	Python     string // default /usr/bin/python3
	Node       string // default /usr/bin/node
	Shell      string // default /bin/sh
	Memory     string // of each sandbox; "": the ring's
	Timeout    string // likewise
}

// CodeCommands returns what CodeExecutor may start.
func CodeCommands(o CodeOptions) []link.Command {
	or := func(path, usual string) string {
		if path == "" {
			return usual
		}
		return path
	}
	in := func(language string, argv ...string) link.Command {
		return Config{Argv: argv, Memory: o.Memory, Timeout: o.Timeout}.Command(CodeName + "/" + language)
	}
	return []link.Command{
		// -I: neither the environment nor the working folder has a say in what is imported.
		in("python", or(o.Python, "/usr/bin/python3"), "-I", "-c", pythonStart),
		in("javascript", or(o.Node, "/usr/bin/node"), "-e", nodeStart),
		in("sh", or(o.Shell, "/bin/sh"), "-s"),
	}
}

// CodeExecutor runs an agent's code in a fresh sandbox of ring 3 (M-11, category C). To the ring enforcer it is read-only:
// the code can do less than the run that sent it, which is in ring 3 or above, and nothing of it stays.
func CodeExecutor(o CodeOptions) tools.Definition {
	return tools.Definition{
		Name:        CodeName,
		Description: "Runs a program in Python, JavaScript or sh in a sandbox of its own, without network and files, and gives what it prints and its exit code.",
		Category:    gate.CategoryC,
		Schema:      json.RawMessage(codeSchema),
		Action:      tools.ReadAction(CodeName),
		Tool:        code{runner{o.Supervisor}},
	}
}

type code struct{ runner }

type codeArgs struct {
	Language string `json:"language"`
	Code     string `json:"code"`
	Stdin    string `json:"stdin"`
}

type codeOutput struct {
	Output   string `json:"output"` // both streams; what isn't UTF-8 is replaced
	ExitCode int    `json:"exit_code"`
}

// Call runs the code. An exit code that isn't 0 is a result: the agent's own program has failed, not the tool.
func (t code) Call(ctx context.Context, c tools.Call) (tools.Result, error) {
	var args codeArgs
	if err := gojson.Unmarshal(c.Args, &args, gojson.RejectUnknownMembers(true)); err != nil {
		return tools.Result{}, refuse(gate.CodeBadArguments, err, "correct the arguments", "the arguments don't fit the schema")
	}
	input, bad := args.input()
	if bad != nil {
		return tools.Result{}, bad
	}
	e, bad := t.run(ctx, CodeName+"/"+args.Language, input, limitOf(c))
	if bad == nil {
		bad = e.verdict()
	}
	if bad != nil {
		return tools.Result{}, bad
	}
	out, err := gojson.Marshal(codeOutput{strings.ToValidUTF8(string(e.output), "�"), e.code})
	if err != nil {
		return tools.Result{}, err
	}
	if int64(len(out)) > limitOf(c) {
		return tools.Result{}, refuse(gate.CodeTooLarge, nil, "print less", "the output has more than %d bytes", limitOf(c))
	}
	return tools.Result{Output: out, Sent: int64(len(input)), Received: int64(len(e.output))}, nil
}

// input is what the interpreter reads. Only the languages of CodeCommands have one: the name of the entry that the
// supervisor is asked for is never an agent's text.
func (a codeArgs) input() ([]byte, *gate.Error) {
	switch {
	case a.Code == "":
		return nil, refuse(gate.CodeBadArguments, nil, "send code", "there is no code")
	case a.Language == "python", a.Language == "javascript":
		b, err := gojson.Marshal(struct {
			Code  string `json:"code"`
			Stdin string `json:"stdin"`
		}{a.Code, a.Stdin})
		if err != nil {
			return nil, refuse(gate.CodeBadArguments, err, "send text", "the code can't be encoded")
		}
		return b, nil
	case a.Language == "sh" && a.Stdin != "":
		return nil, refuse(gate.CodeBadArguments, nil, "put the data into the code, as a here-document", "sh reads its code from the standard input, so stdin can't be given")
	case a.Language == "sh":
		return append(bytes.Clone([]byte("exec 2>&1\n")), a.Code...), nil
	}
	return nil, refuse(gate.CodeBadArguments, nil, "GET /internal/tools has the schema", "there is no such language")
}
