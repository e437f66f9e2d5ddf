// SPDX-License-Identifier: Apache-2.0

package images

// Order is what Program is to do, as JSON on its standard input. All that decides is in it: it reads no configuration.
type Order struct {
	Into      string   `json:"into"` // the folder that New has made
	Pull      string   `json:"pull,omitempty"`
	Import    string   `json:"import,omitempty"` // a file or folder
	Name      string   `json:"name,omitempty"`   // of an import; empty: those it has
	Platform  string   `json:"platform"`
	PlainHTTP bool     `json:"plain_http,omitempty"`
	Key       string   `json:"key,omitempty"` // public key in PEM that must have signed it; empty: none
	Allow     []string `json:"allow,omitempty"`
	Owners    bool     `json:"owners"` // files get the archive's
	Progress  bool     `json:"progress"`
	Bar       bool     `json:"bar"`
	Agent     string   `json:"agent"` // what it says to registries that it is
}

// Result is what it has done, as JSON on its standard output. What is wrong it says on standard error itself.
type Result struct {
	Image Image    `json:"image"`
	Names []string `json:"names"`
}
