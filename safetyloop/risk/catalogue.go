// SPDX-License-Identifier: Apache-2.0

package risk

// factor numbers the catalogue's rows.
type factor uint8

const (
	noFactor factor = iota
	verbRead
	verbTest
	verbFetch
	verbWrite
	verbChange
	verbRun
	verbSend
	verbInstall
	verbStop
	verbDelete
	verbDeploy
	verbAccess
	verbPay
	verbDestroy
	irreversible
	scopeAll
	recursive
	force
	objectData
	objectStore
	personalData
	targetProduction
	readsProduction
	targetMainBranch
	targetRoot
	systemPath
	readsOutside
	changesOutside
	credentialWord
	credentialPath
	network
	exfiltration
	downloadAndRun
	dynamicCode
	carriedCommand
	remoteShell
	forkBomb
	privilege
	persistence
	securityOff
	disguised
	hiddenCharacters
	vague
	shellUnreadable
	factors // their number
)

// Vague is the name of the factor of a hint that can't be judged.
const Vague = "vague"

// Entry is a row of Catalogue.
type Entry struct {
	Name   string
	Points int
	// Floor is a score that the factor raises the sum to; Points is then 0.
	Floor int
	Why   string
}

// Catalogue lists every factor with what it adds.
func Catalogue() []Entry { return catalogue[1:] }

// catalogue is in the order of the constants. Of the verbs only the strongest counts. The points are chosen
// so that a verb alone lands in the tier that fits a small and known target, and what makes it worse moves it
// up: docs/risk-score.md has the reasoning.
var catalogue = [factors]Entry{
	verbRead:         {Name: "verb_read", Points: 5, Why: "looks at something and leaves it as it is"},
	verbTest:         {Name: "verb_test", Points: 10, Why: "builds, tests or checks: runs code that is there already"},
	verbFetch:        {Name: "verb_fetch", Points: 15, Why: "brings something in from outside"},
	verbWrite:        {Name: "verb_write", Points: 20, Why: "makes something new"},
	verbChange:       {Name: "verb_change", Points: 20, Why: "changes something that is there"},
	verbRun:          {Name: "verb_run", Points: 25, Why: "starts a program or code"},
	verbSend:         {Name: "verb_send", Points: 25, Why: "gives something to others"},
	verbInstall:      {Name: "verb_install", Points: 35, Why: "installs a package: code by others runs at once"},
	verbStop:         {Name: "verb_stop", Points: 35, Why: "stops, restarts or disables something that runs"},
	verbDelete:       {Name: "verb_delete", Points: 40, Why: "deletes something"},
	verbDeploy:       {Name: "verb_deploy", Points: 40, Why: "changes what others use"},
	verbAccess:       {Name: "verb_access", Points: 45, Why: "changes who may do what"},
	verbPay:          {Name: "verb_pay", Points: 45, Why: "moves money or value"},
	verbDestroy:      {Name: "verb_destroy", Points: 55, Why: "destroys a whole container of things: drop, truncate, wipe, format"},
	irreversible:     {Name: "irreversible", Points: 10, Why: "can't be taken back by the one who does it"},
	scopeAll:         {Name: "scope_all", Points: 15, Why: "a change of everything rather than of one thing; also DELETE or UPDATE without WHERE"},
	recursive:        {Name: "recursive", Points: 10, Why: "goes down a tree"},
	force:            {Name: "force", Points: 10, Why: "tells a tool not to ask or not to check"},
	objectData:       {Name: "object_data", Points: 5, Why: "deletes, stops or opens records, tables, users, accounts"},
	objectStore:      {Name: "object_store", Points: 15, Why: "deletes, stops or opens what holds many of them: databases, disks, clusters, backups"},
	personalData:     {Name: "personal_data", Points: 15, Why: "data about persons is given away, taken in, or deleted"},
	targetProduction: {Name: "target_production", Points: 30, Why: "changes what is in use by others"},
	readsProduction:  {Name: "reads_production", Points: 15, Why: "looks at what is in use by others"},
	targetMainBranch: {Name: "target_main_branch", Points: 10, Why: "pushes to the branch that others build on"},
	targetRoot:       {Name: "target_root", Points: 45, Why: "changes the root folder, a home folder, or a whole device"},
	systemPath:       {Name: "system_path", Points: 25, Why: "a path of the operating system"},
	readsOutside:     {Name: "reads_outside", Points: 10, Why: "a path outside the workspace"},
	changesOutside:   {Name: "changes_outside", Points: 25, Why: "changes a path outside the workspace"},
	credentialWord:   {Name: "credential_word", Points: 25, Why: "speaks of passwords, tokens, keys or secrets"},
	credentialPath:   {Name: "credential_path", Points: 55, Why: "a file that holds credentials"},
	network:          {Name: "network", Points: 10, Why: "a host, an address or a program that speaks to others"},
	exfiltration:     {Name: "exfiltration", Points: 35, Why: "something sensitive and a way out in one hint"},
	downloadAndRun:   {Name: "download_and_run", Points: 55, Why: "runs what was downloaded or decoded just before"},
	dynamicCode:      {Name: "dynamic_code", Points: 40, Why: "a command whose name is only known when it runs"},
	carriedCommand:   {Name: "carried_command", Points: 30, Why: "an option, a script or a variable of one program has another one run"},
	remoteShell:      {Name: "remote_shell", Points: 65, Why: "gives a shell to another host"},
	forkBomb:         {Name: "fork_bomb", Points: 90, Why: "a function that starts itself twice"},
	privilege:        {Name: "privilege", Points: 25, Why: "with the rights of root or an administrator"},
	persistence:      {Name: "persistence", Points: 25, Why: "arranges to run later or again: cron, units, start-up files, hooks"},
	securityOff:      {Name: "security_off", Points: 35, Why: "takes away a protection: firewall, audit, backup, sign-in, checks"},
	disguised:        {Name: "disguised", Points: 25, Why: "a verb that is written so that it isn't recognised"},
	hiddenCharacters: {Name: "hidden_characters", Points: 35, Why: "characters that can't be seen or stand for others: no honest hint needs them"},
	vague:            {Name: Vague, Floor: AdvisoryMax + 1, Why: "no verb or no target that could be judged"},
	shellUnreadable:  {Name: "shell_unreadable", Floor: ConfirmMax + 1, Why: "a command that can't be read, or too much of it"},
}
