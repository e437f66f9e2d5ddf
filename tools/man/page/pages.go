// SPDX-License-Identifier: Apache-2.0

package page

var seeAlso = "README.md, SECURITY.md and docs/ of the sources."

// All are the pages of the four programs. Those of the three that agentrun starts have the help of the verb that hands
// over to them.
var All = []Page{
	{
		Name: "agentrun",
		Sections: []Section{
			{Title: "Exit status", Text: `That of the agent where a program is run, as under agentrun exec; 125 where agentrun could not do what was asked, with
the reason and a hint on standard error. docs/exit-codes.md has those of each command.`},
			{Title: "Files", Items: [][2]string{
				{"/etc/agentrun/config.yaml", "the configuration: folders, log, who may use the control sockets, the daemon, kill handlers"},
				{"/etc/agentrun/gateway.yaml", "what runs may call and where they may connect: tools, egress, models, secrets, policies"},
				{"/etc/agentrun/plans.yaml", "budgets of agents"},
				{"/etc/agentrun/profiles/NAME.yaml", "profiles beside the built-in ones"},
				{"/var/lib/agentrun", "the state: agents, sessions, sagas, audit, keys"},
				{"/run/agentrun", "what lives as long as a run: sandboxes, locks, control sockets"},
			}},
			{Title: "See also", Text: "agentrun-gateway(1), agentrun-safety(1), agentrun-image(1), " + seeAlso},
		},
	},
	{
		Name: "agentrun-gateway", Title: "decide and record what a sandboxed agent calls and where it connects", Verbs: []string{"policy"},
		About: `agentrun starts it, at a run's first connection, as a process without any privilege; nobody else needs to. It serves the
tools, models and connections that /etc/agentrun/gateway.yaml and the run's flags allow, and ends with its run.

agentrun policy hands over to it. agentrun looks for it beside itself, in ../libexec/agentrun from there, in
/usr/libexec/agentrun and in /usr/lib/agentrun, and starts it only from where nobody but root and the caller could have
written it.`,
		Sections: []Section{{Title: "See also", Text: "agentrun(1), docs/exit.md, docs/policy.md, " + seeAlso}},
	},
	{
		Name: "agentrun-safety", Title: "tell agents whether they may do what they are about to do", Verbs: []string{"safety"},
		About: `The execution safety loop as an MCP server. agentrun safety hands over to it; it needs neither root nor a sandbox, and
is looked for where agentrun-gateway is. What it has stopped waits for agentrun challenges.`,
		Sections: []Section{{Title: "See also", Text: "agentrun(1), docs/safety-dongle.md, docs/safety-policy.md, " + seeAlso}},
	},
	{
		Name: "agentrun-image", Title: "fetch and unpack container images", Verbs: []string{"image"},
		About: `agentrun image pull and agentrun image import start it, give it an order on standard input and keep what it has unpacked.
It has an HTTP client and reads what strangers have packed, which a run's supervisor does not; nobody else needs to start it. It
is looked for where agentrun-gateway is.`,
		Sections: []Section{{Title: "See also", Text: "agentrun(1), docs/images.md, " + seeAlso}},
	},
}
