// SPDX-License-Identifier: Apache-2.0

package risk

import "strings"

// noun notes what a word says about scope, environment and object.
func (f *finder) noun(word, next string) {
	switch {
	case scopeWord(word):
		first(&f.all, word)
	case production(word) || word == "live" && system(next):
		first(&f.prod, word)
	case word == "main" || word == "master" || word == "trunk":
		first(&f.main, word)
	case storeWord(word):
		first(&f.store, word)
	case dataWord(word):
		first(&f.data, word)
	}
	switch {
	case personWord(word) || word == "credit" && strings.HasPrefix(next, "card"):
		first(&f.person, word)
		f.sensitive = f.sensitive || word != "customer" && word != "customers"
	case secretWord(word) || (word == "private" || word == "api" || word == "access" || word == "ssh") && strings.HasPrefix(next, "key"):
		f.add(credentialWord, word)
		f.sensitive = true
	case word == "confidential" || word == "proprietary":
		f.sensitive = true
	case protection(word):
		first(&f.security, word)
	case word == "sudo" || word == "doas" || word == "root" || word == "administrator" || word == "superuser":
		f.add(privilege, word)
	case word == "cron" || word == "crontab" || word == "startup" || word == "autostart" || word == "bashrc":
		if word != "startup" || next == "script" || next == "item" {
			f.add(persistence, word)
		}
	case word == "recursive" || word == "recursively":
		f.add(recursive, word)
	case word == "forcibly" || word == "forcefully" || word == "force" || word == "forced" || word == "forcing":
		f.add(force, word)
	}
}

func first(into *string, word string) {
	if *into == "" {
		*into = word
	}
}

func scopeWord(w string) bool {
	switch w {
	case "all", "every", "everything", "everyone", "everybody", "entire", "entirely", "whole", "bulk", "mass", "complete", "completely", "*", "any", "anything", "everywhere", "totally", "wholesale":
		return true
	}
	return false
}

func production(w string) bool {
	switch w {
	case "production", "prod", "prd", "mainnet", "prods", "productive":
		return true
	}
	return false
}

func system(w string) bool {
	switch w {
	case "site", "server", "servers", "system", "systems", "database", "databases", "db", "environment", "env", "data", "traffic", "customers", "users", "cluster", "instance", "service", "account", "accounts", "store", "app", "website":
		return true
	}
	return false
}

func storeWord(w string) bool {
	switch w {
	case "database", "databases", "db", "schema", "schemas", "volume", "volumes", "disk", "disks", "drive", "drives", "partition", "bucket", "buckets", "cluster", "clusters", "namespace", "namespaces",
		"infrastructure", "server", "servers", "vm", "vms", "instances", "repository", "repositories", "repo", "repos", "backup", "backups", "snapshot", "snapshots", "stack", "tenant", "tenants", "organization",
		"organisation", "filesystem", "filesystems", "datacenter", "vault", "keyspace", "warehouse", "workspaces", "device", "history", "home":
		return true
	}
	return false
}

// medium takes what is empty after it was formatted.
func medium(w string) bool {
	switch w {
	case "disk", "disks", "drive", "drives", "partition", "volume", "volumes", "device", "filesystem":
		return true
	}
	return false
}

func dataWord(w string) bool {
	switch w {
	case "record", "records", "row", "rows", "table", "tables", "user", "users", "customer", "customers", "account", "accounts", "entry", "entries", "document", "documents", "collection", "collections", "data",
		"permission", "permissions", "role", "roles", "index", "column", "columns", "service", "services", "mailbox", "inbox", "project", "projects", "branch", "branches", "order", "orders", "pods", "deployment":
		return true
	}
	return false
}

func personWord(w string) bool {
	switch w {
	case "customer", "customers", "patient", "patients", "personal", "pii", "ssn", "salary", "salaries", "medical", "passport", "payroll", "employees", "subscribers":
		return true
	}
	return false
}

func secretWord(w string) bool {
	switch w {
	case "password", "passwords", "passwd", "passphrase", "secret", "secrets", "credential", "credentials", "token", "tokens", "apikey", "apikeys", "cookies", "keychain", "keystore", "seed_phrase", "mnemonic", "privatekey", "otp",
		"keyring":
		return true
	}
	return false
}

// protection is what an attack would switch off.
func protection(w string) bool {
	switch w {
	case "firewall", "iptables", "ufw", "authentication", "auth", "mfa", "2fa", "audit", "auditing", "auditd", "logging", "monitoring", "alerting", "alerts", "alarm", "antivirus", "selinux", "apparmor", "seccomp", "sandbox", "guardrail", "guardrails",
		"encryption", "safety", "security", "protection", "tls", "verification", "restrictions", "ratelimit", "quota", "edr", "defender":
		return true
	}
	return false
}

// plain words say nothing about the target.
func filler(w string) bool {
	switch w {
	case "a", "an", "the", "this", "that", "these", "those", "it", "its", "them", "they", "some", "something", "anything", "everything", "nothing", "thing", "things", "stuff", "to", "of", "in", "on", "at", "by", "for", "from", "with", "without", "into",
		"onto", "via", "using", "use", "used", "and", "or", "then", "than", "as", "is", "are", "was", "be", "been", "will", "would", "should", "could", "can", "may", "might", "must", "shall", "do", "does", "doing", "did", "done", "have", "has", "had", "having",
		"i", "im", "ill", "we", "you", "he", "she", "my", "our", "your", "their", "his", "her", "me", "us", "going", "go", "need", "needs", "want", "wants", "now", "next", "please", "just", "also", "only", "not", "no", "yes", "so", "if",
		"file", "files", "folder", "folders", "directory", "directories", "command", "commands", "script", "scripts", "task", "tasks", "action", "actions", "operation", "operations", "work", "step", "steps", "tool", "tools", "function", "functions",
		"process", "program", "code", "item", "items", "value", "values", "content", "contents", "text", "information", "info", "request", "requests", "resource", "resources", "object", "objects", "way", "necessary", "required", "needed", "various",
		"etc", "again", "dont", "cant", "titled", "named", "shut", "shutting", "tear", "tearing", "roll", "rolling", "switch", "handle", "handling", "unused", "remaining", "existing", "git", "npm", "pip", "psql", "mysql", "sqlite3", "redis", "cli", "aws", "gcloud", "docker", "kubectl", "terraform", "rsync", "curl", "cargo", "systemctl", "echo", "index", "eof", "eval", "turn", "turning", "table", "tables", "record", "records", "row", "rows", "database", "env", "sudo", "bash", "sh", "more", "other", "others", "one", "ones", "new", "old", "data", "shell", "call", "calls", "calling", "called", "invoke", "invoking", "about", "after", "before", "when", "while", "where", "which", "what", "who", "how", "why", "there", "here", "up", "down",
		"out", "off", "over", "under", "make", "making", "sure", "try", "trying", "let", "lets", "continue", "proceed", "changes", "change", "message", "messages", "query", "queries", "job", "jobs", "server", "system", "current", "all", "every", "each", "any", "mcp", "application", "app", "result", "results", "output", "input", "api", "url", "path", "name":
		return true
	}
	return len(w) < 2
}

// leads tells whether a verb is expected after the word: "to email", "then post", "quickly share".
func leads(w string) bool {
	switch w {
	case "", "to", "and", "then", "will", "would", "should", "can", "must", "please", "calling", "call", "ill", "lets", "let", "i", "we", "you", "now", "next", "also", "or", "just", "not", "dont", "going", "by", "but", "so", "command", "tool", "operation", "using", "action", "finally", "afterwards", "before", "after":
		return true
	}
	return strings.HasSuffix(w, "ly")
}
