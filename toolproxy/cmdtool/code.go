// SPDX-License-Identifier: Apache-2.0

package cmdtool

import (
	"context"
	_ "embed"
	"strings"

	gojson "github.com/go-json-experiment/json"

	"agentrun/toolproxy/gate"
	"agentrun/toolproxy/link"
	"agentrun/toolproxy/tools"
)

// CodeName is the name of the tool that CodeExecutor defines; its commands are CodeName/LANGUAGE.
const CodeName = "code-executor"

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

// CodeCommands returns what CodeExecutor may start: Debian's interpreters, within the ring's limits.
func CodeCommands() []link.Command {
	in := func(language string, argv ...string) link.Command {
		return Config{Argv: argv}.Command(CodeName + "/" + language)
	}
	return []link.Command{
		// -I: neither the environment nor the working folder has a say in what is imported.
		in("python", "/usr/bin/python3", "-I", "-c", pythonStart),
		in("javascript", "/usr/bin/node", "-e", nodeStart),
		in("sh", "/bin/sh", "-s"),
	}
}

//go:embed tools.json
var table []byte

// CodeExecutor runs an agent's code in a fresh sandbox of ring 3 (M-11, category C). To start a program is no reading (H-6): it needs
// ring 2, as a subprocess does (H-11). An operator who lets ring 3 have it says read_only: true in gateway.yaml.
func CodeExecutor(supervisor link.Supervisor) tools.Definition {
	run := tools.Function[codeArgs](code{runner{supervisor}}.run)
	return tools.Described(table, map[string]tools.Tool{CodeName: run})[0]
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

// run runs the code. An exit code that isn't 0 is a result: the agent's own program has failed, not the tool.
func (t code) run(ctx context.Context, c tools.Call, args codeArgs) (any, error) {
	input, bad := args.input()
	if bad != nil {
		return nil, bad
	}
	e, bad := t.start(ctx, CodeName+"/"+args.Language, input, c.Most())
	if bad == nil {
		bad = e.verdict()
	}
	if bad != nil {
		return nil, bad
	}
	out, err := gojson.Marshal(codeOutput{strings.ToValidUTF8(string(e.output), "\uFFFD"), e.code})
	return tools.Result{Output: out, Sent: int64(len(input)), Received: int64(len(e.output))}, err
}

// input is what the interpreter reads. Only the languages of CodeCommands have one: the name of the entry that the
// supervisor is asked for is never an agent's text.
func (a codeArgs) input() ([]byte, *gate.Error) {
	switch {
	case a.Code == "":
		return nil, tools.Refuse(gate.CodeBadArguments, nil, "send code", "there is no code")
	case a.Language == "python", a.Language == "javascript":
		b, err := gojson.Marshal(struct {
			Code  string `json:"code"`
			Stdin string `json:"stdin"`
		}{a.Code, a.Stdin})
		if err != nil {
			return nil, tools.Refuse(gate.CodeBadArguments, err, "send text", "the code can't be encoded")
		}
		return b, nil
	case a.Language == "sh" && a.Stdin != "":
		return nil, tools.Refuse(gate.CodeBadArguments, nil, "put the data into the code, as a here-document",
			"sh reads its code from the standard input, so stdin can't be given")
	case a.Language == "sh":
		return []byte("exec 2>&1\n" + a.Code), nil
	}
	return nil, tools.Refuse(gate.CodeBadArguments, nil, "GET /internal/tools has the schema",
		"there is no such language")
}
